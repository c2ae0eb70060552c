//! Whether a template wants message contents as one string or as a list of parts.
//!
//! vLLM decides it from the template's syntax tree: a template that loops over the content of a
//! message (`{% for part in message['content'] %}`), over a variable called `content`, or, in a
//! macro, over a parameter that is given the content of a message, gets lists of parts; any other
//! gets strings. The same rule is followed here on the text of the tags, through assignments
//! (`{% set msgs = messages[1:] %}`), filters, slices and tests.

/// The shape of `message.content` that a template is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// One string; text parts are joined by line feeds.
    String,
    /// A list of parts; a plain string becomes one text part.
    Parts,
}

impl ContentFormat {
    /// Reads the template's source.
    pub(crate) fn detect(source: &str) -> Self {
        let tags = Tags::read(source);
        let mut names = vec!["messages"];
        let mut next = 0;
        while next < names.len() {
            for (target, expression) in &tags.sets {
                if !names.contains(target) && base(expression) == Some((names[next], None)) {
                    names.push(target);
                }
            }
            next += 1;
        }
        let items: Vec<&str> = tags
            .loops
            .iter()
            .filter(|l| matches!(base(l.over), Some((name, None)) if names.contains(&name)))
            .map(|l| l.target)
            .collect();
        let is_content = |expression: &str| matches!(base(expression), Some((name, Some("content"))) if items.contains(&name));
        let takes_parts = |l: &Loop<'_>| {
            is_content(l.over)
                || match l.in_macro {
                    None => l.over == "content",
                    Some(at) => tags.macros[at].is_given(l.over, source, is_content),
                }
        };
        if tags.loops.iter().any(takes_parts) { Self::Parts } else { Self::String }
    }
}

/// The tags of a template that matter here.
#[derive(Default)]
struct Tags<'a> {
    /// `{% set a = b %}` as (a, b).
    sets: Vec<(&'a str, &'a str)>,
    loops: Vec<Loop<'a>>,
    macros: Vec<Macro<'a>>,
}

/// `{% for target in over %}`
struct Loop<'a> {
    target: &'a str,
    over: &'a str,
    /// Which macro it stands in.
    in_macro: Option<usize>,
}

struct Macro<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
}

impl<'a> Tags<'a> {
    fn read(source: &'a str) -> Self {
        let mut tags = Self::default();
        let mut in_macro = None;
        for tag in source.split("{%").skip(1) {
            let Some((inner, _)) = tag.split_once("%}") else { continue };
            let inner = inner.trim_matches(['-', '+']).trim();
            let (word, rest) = split_word(inner);
            match word {
                "for" => {
                    let Some((target, over)) = rest.split_once(" in ") else { continue };
                    // `for x in y if z` and `for x in y recursive` loop over y.
                    let over = over.split(" if ").next().unwrap_or(over);
                    let over = over.trim_end().trim_end_matches(" recursive").trim();
                    tags.loops.push(Loop { target: target.trim(), over, in_macro });
                }
                "set" => {
                    if let Some((target, value)) = rest.split_once('=') {
                        tags.sets.push((target.trim(), value.trim()));
                    }
                }
                "macro" => {
                    let Some((name, parameters)) = rest.split_once('(') else { continue };
                    let parameters = arguments(parameters)
                        .map(|p| p.split_once('=').map_or(p, |(name, _)| name).trim())
                        .collect();
                    in_macro = Some(tags.macros.len());
                    tags.macros.push(Macro { name: name.trim(), parameters });
                }
                "endmacro" => in_macro = None,
                _ => {}
            }
        }
        tags
    }
}

impl Macro<'_> {
    /// Whether some call of the macro gives `parameter` a value of which `is` holds.
    fn is_given(&self, parameter: &str, source: &str, is: impl Fn(&str) -> bool) -> bool {
        let Some(place) = self.parameters.iter().position(|p| *p == parameter) else {
            return false;
        };
        source.match_indices(self.name).any(|(at, name)| {
            let Some(call) = source[at + name.len()..].strip_prefix('(') else { return false };
            arguments(call).enumerate().any(|(at, argument)| match argument.split_once('=') {
                Some((name, value)) => name.trim() == parameter && is(value),
                None => at == place && is(argument),
            })
        })
    }
}

/// The comma-separated arguments up to the closing parenthesis.
fn arguments(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let end = text
        .find(|c| {
            match c {
                '(' | '[' => depth += 1,
                ')' if depth == 0 => return true,
                ')' | ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            false
        })
        .unwrap_or(text.len());
    text[..end].split(',').map(str::trim).filter(|argument| !argument.is_empty())
}

/// The variable at the root of an expression and the one key taken of it, seen through filters,
/// tests and slices: `(message['content'] | list)[1:]` is `message`, `content`. `None` for
/// anything else.
fn base(expression: &str) -> Option<(&str, Option<&str>)> {
    let rest = expression.trim_start_matches(['(', ' ', '\n']);
    let (name, rest) = split_word(rest);
    let (key, mut rest) = match rest.as_bytes().first() {
        Some(b'.') => {
            let (attribute, rest) = split_word(&rest[1..]);
            (Some(attribute), rest)
        }
        Some(b'[') => match bracketed(rest)? {
            (inner, _) if inner.contains(':') => (None, rest),
            (inner, rest) => (Some(unquoted(inner)?), rest),
        },
        _ => (None, rest),
    };
    if name.is_empty() || key == Some("") {
        return None;
    }
    loop {
        rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with('|') || rest.starts_with("is ") {
            return Some((name, key));
        }
        rest = match rest.strip_prefix(')') {
            Some(rest) => rest,
            None => bracketed(rest).filter(|(inner, _)| inner.contains(':'))?.1,
        };
    }
}

fn split_word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    text.split_at(end)
}

fn bracketed(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('[')?.split_once(']')
}

fn unquoted(text: &str) -> Option<&str> {
    let text = text.trim();
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text.strip_prefix(quote)?.strip_suffix(quote)
}

#[cfg(test)]
mod tests {
    use super::ContentFormat::{self, Parts, String};

    #[test]
    fn a_template_that_loops_over_content_gets_parts() {
        let cases = [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", String),
            ("{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", Parts),
            ("{%- for m in messages -%}{%- for p in m.content -%}x{% endfor %}{% endfor %}", Parts),
            (
                "{% set ms = messages[1:] %}{% for m in ms %}{% for p in m[\"content\"] | list %}\
                 {% endfor %}{% endfor %}",
                Parts,
            ),
            (
                "{% set loop_messages = messages %}{% for m in loop_messages if m.role %}\
                 {% for t in m.tool_calls %}{% endfor %}{% endfor %}",
                String,
            ),
            ("{% set content = m %}{% for c in content %}{% endfor %}", Parts),
            ("{% macro r(content) %}{% for c in content %}{% endfor %}{% endmacro %}", String),
            (
                "{% macro r(x, items=none) %}{% for i in items %}{% endfor %}{% endmacro %}\
                 {% for m in messages %}{{ r(true, m.content) }}{% endfor %}",
                Parts,
            ),
            (
                "{% macro r(items) %}{% for i in items %}{% endfor %}{% endmacro %}\
                 {% for m in messages %}{{ r(items=m['content'] | list) }}{% endfor %}",
                Parts,
            ),
            (
                "{% macro r(items) %}{% for i in items %}{% endfor %}{% endmacro %}\
                 {% for m in messages %}{{ r(m.tool_calls) }}{{ m.content }}{% endfor %}",
                String,
            ),
            ("{% for t in tools %}{% for p in t.content %}{% endfor %}{% endfor %}", String),
            ("{% for m in messages %}{{ m.content | length }}{% endfor %}", String),
            ("{% for m in (messages | reject('x')) %}{% for p in m.content %}{% endfor %}", Parts),
            ("{% for m in messages %}{% for p in m.content.split('x') %}{% endfor %}", String),
            ("{% for m in messages + x %}{% for p in m.content %}{% endfor %}", String),
            ("{% for m in (messages | list)[1:] %}{% for p in m['content'][:2] %}", Parts),
            ("", String),
            ("{% for", String),
        ];
        for (source, want) in cases {
            assert_eq!(ContentFormat::detect(source), want, "{source}");
        }
    }
}
