//! OpenAI's Responses: events by `type`; those that end in `.delta` carry output, and the last one
//! the whole response. A whole answer has its output in the contents of `output`.

use super::reader::{Reader, is_truthy};
use super::{Found, Said};
use crate::json::Malformed;

impl Found {
    pub(super) fn response_event(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        // The type may stand behind what it is the type of.
        let (mut kind, mut delta) = (&b""[..], None);
        reader.object(|key, reader| match key {
            b"type" => {
                kind = reader.string()?;
                Ok(())
            }
            b"delta" => {
                delta = Some(reader.cursor.value()?);
                Ok(())
            }
            b"output" => reader.items(|reader| self.output_item(reader)),
            b"response" => reader.object(|key, reader| self.usage_or_skip(key, reader)),
            b"error" => {
                self.error |= reader.is_truthy()?;
                Ok(())
            }
            _ => reader.skip(),
        })?;
        match kind {
            b"response.created" => self.role = true,
            b"response.completed" | b"response.incomplete" => self.done = true,
            b"response.failed" | b"response.cancelled" | b"error" => self.error = true,
            _ => {}
        }
        if let Some(delta) = delta.filter(|_| kind.ends_with(b".delta")) {
            let value = &reader.text[delta.clone()];
            match (kind, value) {
                _ if !is_truthy(value) => {}
                (b"response.output_text.delta", [b'"', ..]) => {
                    self.said = Said::Text { start: delta.start + 1, end: delta.end - 1 };
                }
                _ => self.said = Said::Other,
            }
        }
        Ok(())
    }

    fn output_item(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"content" => reader.items(|reader| {
                reader.object(|key, reader| match key {
                    b"text" => self.text(reader),
                    _ => reader.skip(),
                })
            }),
            b"summary" | b"arguments" | b"input" => self.other(reader),
            _ => reader.skip(),
        })
    }
}

/// The longest id of a response, in bytes. Engines make them of a prefix and a UUID.
pub const MAX_RESPONSE_ID_BYTES: usize = 256;

/// The id of the response that an event or a whole answer is about. Ids are short and plain;
/// anything else is none.
pub fn response_id(data: &[u8]) -> Option<&str> {
    let mut reader = Reader::new(data.trim_ascii());
    let (mut own, mut inner, mut is_response) = (None, None, false);
    // What stands before a fault counts.
    let _ = reader.object(|key, reader| match key {
        b"id" => {
            own = Some(reader.string()?);
            Ok(())
        }
        b"object" => {
            is_response = reader.string()? == b"response";
            Ok(())
        }
        b"response" => reader.object(|key, reader| {
            if key == b"id" {
                inner = Some(reader.string()?);
                return Ok(());
            }
            reader.skip()
        }),
        _ => reader.skip(),
    });
    let id = std::str::from_utf8(inner.or(own.filter(|_| is_response))?).ok()?;
    let plain = id.bytes().all(|b| b.is_ascii_graphic() && b != b'\\');
    (plain && !id.is_empty() && id.len() <= MAX_RESPONSE_ID_BYTES).then_some(id)
}
