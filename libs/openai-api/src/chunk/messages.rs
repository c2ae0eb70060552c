//! Anthropic's Messages: events by `type`, of which the deltas carry output. A whole answer has it
//! in the blocks of its `content`.

use super::Found;
use super::reader::Reader;
use crate::json::Malformed;

impl Found {
    pub(super) fn message(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"type" => {
                match reader.string()? {
                    b"message_start" => self.role = true,
                    b"message_stop" => self.done = true,
                    b"error" => self.error = true,
                    _ => {}
                }
                Ok(())
            }
            b"message" => reader.object(|key, reader| self.usage_or_skip(key, reader)),
            b"delta" => self.message_delta(reader),
            b"content" => reader.items(|reader| self.message_delta(reader)),
            b"error" => {
                self.error |= reader.is_truthy()?;
                Ok(())
            }
            _ => self.usage_or_skip(key, reader),
        })
    }

    fn message_delta(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        reader.object(|key, reader| match key {
            b"text" => self.text(reader),
            b"thinking" | b"input" | b"partial_json" | b"signature" | b"citation" => {
                self.other(reader)
            }
            b"stop_reason" => {
                self.finish |= reader.is_truthy()?;
                Ok(())
            }
            _ => reader.skip(),
        })
    }

    pub(super) fn usage_or_skip(
        &mut self,
        key: &[u8],
        reader: &mut Reader<'_>,
    ) -> Result<(), Malformed> {
        if key == b"usage" {
            self.counts = reader.usage()?;
            return Ok(());
        }
        reader.skip()
    }
}
