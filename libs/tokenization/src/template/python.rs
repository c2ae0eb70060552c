//! What templates of published models expect of Python: helpers, filters, methods.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};

const RAISE_EXCEPTION: &str = "raise_exception";
const STRFTIME_NOW: &str = "strftime_now";
/// The functions that `transformers` adds to Jinja's own.
pub(super) const HELPERS: [&str; 2] = [RAISE_EXCEPTION, STRFTIME_NOW];

/// Adds the helpers to an environment.
pub(super) fn add_to(env: &mut Environment<'static>) {
    env.add_filter("tojson", to_json);
    env.add_function(RAISE_EXCEPTION, raise_exception);
    env.add_function(STRFTIME_NOW, strftime_now);
    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_sequence);
    env.set_formatter(print_value);
    env.set_unknown_method_callback(method);
}

/// Whether Python could loop over it. Undefined counts as empty there, none does not.
fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

/// Whether it has a length and items in Python, which strings and dicts have as well.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Bytes, Map, Seq, String, Undefined};
    matches!(value.kind(), Undefined | String | Bytes | Seq | Map)
}

/// Prints as the engine does, but floats as Python.
fn print_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        let text = number(value);
        return out.write_str(&text).map_err(Error::from);
    }
    escape_formatter(out, state, value)
}

/// `{% generation %}` marks what a model wrote, for training. It prints what is inside it, which
/// `{% if true %}` does as well. The tag's whitespace control is kept.
pub(super) fn rewrite_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag[..end].replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag[..end].replacen("endgeneration", "endif", 1)),
            _ => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let mut out = String::new();
    // Formatting, unlike `to_string`, reports a bad directive instead of panicking.
    write!(out, "{}", chrono::Local::now().format(format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, "strftime_now: the format is not valid")
    })?;
    Ok(out)
}

/// Python's methods of strings, dicts and lists.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// `json.dumps` with the defaults that chat templates get: nothing escaped for HTML, `", "` and
/// `": "` between items, non-ASCII text as it is.
fn to_json(state: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let indent = match indent.filter(|v| !v.is_none()) {
        None => None,
        Some(v) if v.as_str().is_some() => Some(v.to_string()),
        Some(v) => Some(" ".repeat(usize::try_from(v)?.min(64))),
    };
    let (item, key) = match separators.filter(|v| !v.is_none()) {
        Some(pair) => {
            (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string())
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut writer = Json {
        out: String::new(),
        indent,
        item,
        key,
        ascii: ascii.unwrap_or(false),
        sort: sort.unwrap_or(false),
    };
    writer.value(value, 0)?;
    // The engine charges a quarter of a step per byte for its own serialisers.
    state.consume_fuel(writer.out.len() as u64 / 4)?;
    Ok(Value::from(writer.out))
}

struct Json {
    out: String,
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort: bool,
}

/// Deeper values are refused, as Python refuses them.
const MAX_DEPTH: usize = 200;

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                let message = format!("a value of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            self.separate(&mut empty, depth);
            self.value(&item, depth + 1)?;
        }
        self.close(empty, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort {
            keys.sort();
        }
        let mut empty = true;
        for key in keys {
            self.separate(&mut empty, depth);
            let name = match key.kind() {
                ValueKind::None => "null".to_owned(),
                ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
                ValueKind::Number => number(&key),
                _ => key.to_string(),
            };
            self.string(&name);
            self.out.push_str(&self.key);
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        self.close(empty, depth, '}');
        Ok(())
    }

    fn separate(&mut self, empty: &mut bool, depth: usize) {
        if !std::mem::take(empty) {
            self.out.push_str(&self.item);
        }
        self.line(depth + 1);
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !matches!(c, ' '..='~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python prints it: integers as they are, floats by their shortest digits, in
/// exponent form below 1e-4 and from 1e16 on.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let magnitude = float.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{float:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{float:?}")
}
