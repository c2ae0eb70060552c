//! The Prometheus text format, as far as a reader of gauges and counters needs it: samples with
//! their labels. Comments, types and time stamps are passed over.
//!
//! One pass, nothing copied. A line that is no sample is counted and skipped; no input is an
//! error.

use std::borrow::Cow;

/// Samples kept of one page. vLLM's page has about 600 per rank.
pub const MAX_SAMPLES: usize = 100_000;

/// One scraped page.
#[derive(Clone, Debug, Default)]
pub struct Page<'a> {
    samples: Vec<Sample<'a>>,
    undecoded: u32,
}

/// One line of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// The value; may be infinite or not a number.
    pub value: f64,
    /// What stands between the braces.
    labels: &'a str,
}

/// Reads a page.
pub fn parse(text: &str) -> Page<'_> {
    let mut page = Page::default();
    for line in text.lines() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match sample(line) {
            Some(sample) if page.samples.len() < MAX_SAMPLES => page.samples.push(sample),
            _ => page.undecoded = page.undecoded.saturating_add(1),
        }
    }
    page
}

/// Names of metrics that a reader wants, to be looked up for every line of a page.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// By length, then by text.
    names: Box<[&'static str]>,
    /// For each length of a name up to 63, whether any has it.
    lengths: u64,
}

impl Wanted {
    /// These names and no others.
    pub fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        let mut names: Vec<&'static str> = names.into_iter().collect();
        names.sort_unstable_by_key(|name| (name.len(), *name));
        names.dedup();
        let lengths = names.iter().fold(0, |lengths, name| lengths | length_bit(name.len()));
        Self { names: names.into(), lengths }
    }

    fn has(&self, name: &[u8]) -> bool {
        if self.lengths & length_bit(name.len()) == 0 {
            return false;
        }
        let from = self.names.partition_point(|wanted| wanted.len() < name.len());
        let alike = self.names[from..].iter().take_while(|wanted| wanted.len() == name.len());
        alike.into_iter().any(|wanted| wanted.as_bytes() == name)
    }
}

/// Names of 63 bytes and more share a bit.
fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}

/// Reads nothing of a page but the samples that are wanted. Other lines are passed over unread:
/// what is wrong with them is not counted.
pub fn parse_wanted<'a>(text: &'a str, wanted: &Wanted) -> Page<'a> {
    let mut page = Page::default();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |n| at + n);
        let line = bytes[at..end].trim_ascii_start();
        let name_ends = match line.first() {
            None | Some(b'#') => None,
            Some(_) => memchr::memchr3(b'{', b' ', b'\t', line),
        };
        // Ends of lines and of names are ASCII, so the text can be cut there.
        if name_ends.is_some_and(|ends| wanted.has(&line[..ends])) {
            match sample(text[at..end].trim_ascii()) {
                Some(sample) if page.samples.len() < MAX_SAMPLES => page.samples.push(sample),
                _ => page.undecoded = page.undecoded.saturating_add(1),
            }
        }
        at = end + 1;
    }
    page
}

impl<'a> Page<'a> {
    /// Every sample, in the page's order.
    pub fn samples(&self) -> &[Sample<'a>] {
        &self.samples
    }

    /// The samples of a metric.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }

    /// The value of a metric's first sample, whatever its labels.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.named(name).next().map(|sample| sample.value)
    }

    /// The sum over a metric's samples; `None` if the page has none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.named(name).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    /// Whether any metric's name begins so.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.samples.iter().any(|sample| sample.name.starts_with(prefix))
    }

    /// Lines that are no samples, or were too many.
    pub fn undecoded(&self) -> u32 {
        self.undecoded
    }
}

impl<'a> Sample<'a> {
    /// The value of a label, unescaped.
    pub fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        self.labels().find(|(key, _)| *key == name).map(|(_, value)| unescape(value))
    }

    /// The labels with their values still escaped. Ends early where the text is malformed.
    fn labels(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mut rest = self.labels;
        std::iter::from_fn(move || {
            let (name, after) = rest.split_once('=')?;
            let value = after.trim_ascii_start().strip_prefix('"')?;
            let end = closing_quote(value)?;
            rest = value[end + 1..].trim_ascii_start();
            rest = rest.strip_prefix(',').unwrap_or(rest);
            Some((name.trim_ascii(), &value[..end]))
        })
    }
}

/// `name value`, `name{labels} value`, with an optional time stamp behind.
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let close = closing_brace(inside)?;
            (&inside[..close], &inside[close + 1..])
        }
        None => ("", rest),
    };
    // Rust reads `NaN`, `+Inf` and `-Inf` as Prometheus writes them.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name, value, labels })
}

/// The brace that ends the labels: the first one outside quotes.
fn closing_brace(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let offset = text[at..].find(['"', '}'])?;
        at += offset;
        if text.as_bytes()[at] == b'}' {
            return Some(at);
        }
        at += 1;
        at += closing_quote(&text[at..])? + 1;
    }
}

/// The first quote that no backslash stands before.
fn closing_quote(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        at += text[at..].find(['"', '\\'])?;
        if text.as_bytes()[at] == b'"' {
            return Some(at);
        }
        // Past the backslash and the character it escapes, whatever that is.
        at += 1 + text[at + 1..].chars().next()?.len_utf8();
    }
}

/// Resolves `\\`, `\"` and `\n`; another escape stands for itself.
fn unescape(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some(c @ ('\\' | '"')) => out.push(c),
            Some(c) => out.extend(['\\', c]),
            None => out.push('\\'),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests;
