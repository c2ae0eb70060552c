//! Chat and completions: `choices`, with token ids in place of text where those were asked for.

use super::reader::{Reader, is_truthy};
use super::{Found, Said};
use crate::json::Malformed;

impl Found {
    /// `ids`: token ids are output by themselves.
    pub(super) fn chunk(&mut self, reader: &mut Reader<'_>, ids: bool) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"choices" => self.choices(reader, ids),
            b"usage" => {
                self.counts = reader.usage()?;
                Ok(())
            }
            b"error" => {
                self.error |= reader.is_truthy()?;
                Ok(())
            }
            _ => reader.skip(),
        })
    }

    fn choices(&mut self, reader: &mut Reader<'_>, ids: bool) -> Result<(), Malformed> {
        if reader.cursor.peek() != Some(b'[') {
            return reader.skip();
        }
        reader.cursor.enter(b'[')?;
        let (mut first, mut count) = (true, 0);
        while reader.cursor.next_item(&mut first)? {
            count += 1;
            self.choice(reader, ids)?;
        }
        self.choices = Some(count);
        Ok(())
    }

    fn choice(&mut self, reader: &mut Reader<'_>, ids: bool) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"delta" | b"message" => self.delta(reader),
            b"text" => self.text(reader),
            b"token_ids" if ids => self.other(reader),
            b"finish_reason" => {
                self.finish |= reader.is_truthy()?;
                Ok(())
            }
            _ => reader.skip(),
        })
    }

    /// Takes note of a text; a second one in the same event makes it no plain answer.
    pub(super) fn text(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let raw = reader.cursor.value()?;
        let value = &reader.text[raw.clone()];
        if !is_truthy(value) {
            return Ok(());
        }
        self.said = match (self.said, value) {
            (Said::Nothing, [b'"', ..]) => Said::Text { start: raw.start + 1, end: raw.end - 1 },
            _ => Said::Other,
        };
        Ok(())
    }

    /// Output that is no plain text.
    pub(super) fn other(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        if reader.is_truthy()? {
            self.said = Said::Other;
        }
        Ok(())
    }

    fn delta(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"content" => self.text(reader),
            b"reasoning" | b"reasoning_content" | b"refusal" | b"tool_calls" | b"function_call"
            | b"audio" => self.other(reader),
            b"role" => {
                self.role = true;
                reader.skip()
            }
            _ => reader.skip(),
        })
    }
}
