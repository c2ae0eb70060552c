//! Cohere's chat: events by `type`; those that end in `-delta` carry output, and `message-end` tells
//! usage and how it ended.

use super::reader::Reader;
use super::{Found, Said};
use crate::json::Malformed;

impl Found {
    pub(super) fn cohere(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let (mut kind, mut reason) = (&b""[..], &b""[..]);
        reader.object(|key, reader| match key {
            b"type" => {
                kind = reader.string()?;
                Ok(())
            }
            b"delta" => reader.object(|key, reader| match key {
                b"finish_reason" => {
                    reason = reader.string()?;
                    Ok(())
                }
                _ => self.usage_or_skip(key, reader),
            }),
            b"error" => {
                self.error |= reader.is_truthy()?;
                Ok(())
            }
            _ => reader.skip(),
        })?;
        self.role = kind == b"message-start";
        if kind.ends_with(b"-delta") {
            self.said = Said::Other;
        }
        if kind == b"message-end" {
            self.finish = true;
            self.error |= reason == b"ERROR";
        }
        Ok(())
    }
}
