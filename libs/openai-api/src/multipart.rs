//! `multipart/form-data` in passing (RFC 7578): the field `model`, wherever it stands, and nothing
//! of the files around it.
//!
//! **Invariant:** what is held is bounded, however the body is cut into reads: the head of a part,
//! or the value of `model`, or less than a delimiter. What is done is linear in the body's bytes,
//! whatever they are; a read by itself costs no more than a delimiter.

use std::ops::Range;

use memchr::memmem::Finder;

use self::window::Window;

mod window;

/// Longest head of one part.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Longest name of a model.
const MAX_MODEL_BYTES: usize = 1024;
/// Longest boundary. The standard has 70.
const MAX_BOUNDARY_BYTES: usize = 200;

/// Why a form is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormFault {
    /// It is none, as far as it was read.
    #[error("the form is malformed: {0}")]
    Malformed(&'static str),
    /// Two readers could differ about which model counts.
    #[error("'model' is given twice; give it once")]
    Twice,
}

/// The model that a form names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormModel {
    /// The name.
    pub name: String,
    /// Where it stands in the body, in bytes.
    pub at: Range<usize>,
}

/// Reads a form as it comes.
#[derive(Debug)]
pub struct FormScanner {
    delimiter: Finder<'static>,
    head_end: Finder<'static>,
    /// What was fed and not yet passed. A line end that is not in the body stands before its first
    /// byte, so that the first delimiter is like the others.
    pending: Window,
    state: State,
    model: Option<FormModel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In what is of no interest.
    Skip,
    /// In the value of `model`.
    Model,
    /// Behind a delimiter.
    Line,
    /// In the head of a part.
    Head,
    /// Behind the last delimiter.
    End,
}

const LINE_END: &[u8] = b"\r\n";
const HEAD_END: &[u8] = b"\r\n\r\n";

impl FormScanner {
    /// A scanner for a body of that content type; `None` if it is no form.
    pub fn new(content_type: &str) -> Option<Self> {
        let (kind, rest) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let mut told = parameters(rest);
        told.retain(|(key, _)| key.starts_with("boundary"));
        // Of two, readers take either.
        let [(key, boundary)] = &told[..] else { return None };
        if key != "boundary" || boundary.is_empty() || boundary.len() > MAX_BOUNDARY_BYTES {
            return None;
        }
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        Some(Self {
            delimiter: Finder::new(&delimiter).into_owned(),
            head_end: Finder::new(HEAD_END),
            pending: Window::of(LINE_END),
            state: State::Skip,
            model: None,
        })
    }

    /// The model, once its part has come whole.
    pub fn model(&self) -> Option<&FormModel> {
        self.model.as_ref()
    }

    /// Takes one piece of the body.
    ///
    /// # Errors
    /// [`FormFault`].
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), FormFault> {
        self.pending.add(piece);
        while self.step()? {}
        self.pending.settle();
        Ok(())
    }

    /// The body has ended.
    ///
    /// # Errors
    /// The form has not.
    pub fn finish(&self) -> Result<(), FormFault> {
        match self.state {
            State::End => Ok(()),
            _ => Err(FormFault::Malformed("it does not end with its boundary")),
        }
    }

    /// Whether there is more to do with what is here.
    fn step(&mut self) -> Result<bool, FormFault> {
        match self.state {
            State::Skip => Ok(self.skip()),
            State::Model => self.value(),
            State::Line => self.line(),
            State::Head => self.head(),
            State::End => {
                self.pending.pass(self.pending.rest().len());
                Ok(false)
            }
        }
    }

    fn skip(&mut self) -> bool {
        let length = self.delimiter.needle().len();
        if let Some(at) = self.pending.find(&self.delimiter) {
            self.pending.pass(at + length);
            self.state = State::Line;
            return true;
        }
        // The beginning of a delimiter may be there already.
        self.pending.pass(self.pending.rest().len().saturating_sub(length - 1));
        false
    }

    fn value(&mut self) -> Result<bool, FormFault> {
        let length = self.delimiter.needle().len();
        let found = self.pending.find(&self.delimiter);
        // Without an end the name has all bytes but the beginning of one.
        let shortest = found.unwrap_or((self.pending.rest().len() + 1).saturating_sub(length));
        if shortest > MAX_MODEL_BYTES {
            return Err(FormFault::Malformed("the model's name is too long"));
        }
        let Some(end) = found else { return Ok(false) };
        if self.model.is_some() {
            return Err(FormFault::Twice);
        }
        let name = std::str::from_utf8(&self.pending.rest()[..end]).ok();
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or(FormFault::Malformed("the model's name cannot be read"))?.to_owned();
        let start = self.pending.passed() - LINE_END.len();
        self.model = Some(FormModel { name, at: start..start + end });
        self.pending.pass(end + length);
        self.state = State::Line;
        Ok(true)
    }

    /// The rest of a delimiter's line, which shows whether it is one.
    fn line(&mut self) -> Result<bool, FormFault> {
        self.pending.pass_while(|byte| matches!(byte, b' ' | b'\t'));
        match self.pending.rest() {
            [b'-', b'-', ..] => self.state = State::End,
            [b'\r', b'\n', ..] => {
                self.pending.pass(LINE_END.len());
                self.state = State::Head;
            }
            [] | [b'-' | b'\r'] => return Ok(false),
            // Bytes of a file that begin like the delimiter.
            _ => self.state = State::Skip,
        }
        Ok(true)
    }

    fn head(&mut self) -> Result<bool, FormFault> {
        let found = match self.pending.rest() {
            [b'\r', b'\n', ..] => Some(0),
            _ => self.pending.find(&self.head_end).map(|end| end + LINE_END.len()),
        };
        // Without an end the head has all bytes but the beginning of one.
        let shortest = found.unwrap_or(self.pending.rest().len().saturating_sub(1));
        if shortest > MAX_HEAD_BYTES {
            return Err(FormFault::Malformed("the head of a part is too long"));
        }
        let Some(end) = found else { return Ok(false) };
        let is_model = is_model(&self.pending.rest()[..end]);
        self.pending.pass(end + LINE_END.len());
        self.state = if is_model { State::Model } else { State::Skip };
        Ok(true)
    }
}

/// Whether a part's head says that it is the field `model`, or some reader may take it for that:
/// of a name that is told twice readers take either, and those of the extended form differ. Such a
/// part beside a plain one is one model too many, and the form is refused.
fn is_model(head: &[u8]) -> bool {
    // Readers take heads that are not UTF-8 as Latin-1.
    let head: String = head.iter().map(|byte| char::from(*byte)).collect();
    head.split("\r\n").filter_map(|line| line.split_once(':')).any(|(name, value)| {
        name.trim().eq_ignore_ascii_case("content-disposition")
            && parameters(value)
                .iter()
                .any(|(key, value)| (key == "name" && value == "model") || key.starts_with("name*"))
    })
}

/// The parameters of a header's value, their names in small letters: `name=token` or
/// `name="text"`, between semicolons.
fn parameters(value: &str) -> Vec<(String, String)> {
    let (mut rest, mut all) = (value, Vec::new());
    while !rest.is_empty() {
        let (key, after) = match rest.find(['=', ';']) {
            Some(at) if rest.as_bytes()[at] == b'=' => (&rest[..at], &rest[at + 1..]),
            Some(at) => {
                rest = &rest[at + 1..];
                continue;
            }
            None => break,
        };
        let (found, left) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => match unquoted(quoted) {
                Some(found) => found,
                None => break,
            },
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        all.push((key.trim().to_ascii_lowercase(), found));
        rest = left;
    }
    all
}

/// A quoted text up to its closing quote, and what follows.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => out.push(letters.next()?.1),
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests;
