//! Chat templates: compiled once, rendered as the Python library `transformers` renders them.
//!
//! The environment trims blocks, strips before them, knows loop controls, Python's methods of
//! strings, lists and dicts, and the three helpers that templates of published models call
//! (`tojson`, `strftime_now`, `raise_exception`). Every render has a budget of steps and of
//! output, so that no template can hold a thread.

mod content_format;
mod python;

use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value, context};

pub(crate) use content_format::ContentFormat;

use crate::error::RenderError;

/// Steps a model's own template may take: one per instruction and one per 64 bytes it copies.
/// A chat of 64 MiB needs about four million; a runaway loop ends within seconds.
const FOLDER_FUEL: u64 = 50_000_000;
/// The same for a template that came with a request, which nobody has reviewed.
const REQUEST_FUEL: u64 = 2_000_000;
/// Rendered text beyond this is refused. Twice the default limit of a request's body.
const FOLDER_OUTPUT_BYTES: usize = 128 << 20;
/// The same for a template that came with a request.
const REQUEST_OUTPUT_BYTES: usize = 16 << 20;
/// A longer template in a request is refused. The longest published ones are about 30 KB.
const REQUEST_SOURCE_BYTES: usize = 64 << 10;

/// Name of a template that calls itself the default one of a list.
const DEFAULT: &str = "default";
/// Name of the one that is taken when the request carries tools.
const TOOL_USE: &str = "tool_use";

/// The templates of one model.
pub(crate) struct Templates {
    folder: Environment<'static>,
    request: Environment<'static>,
    default: Option<Traits>,
    tool_use: Option<Traits>,
    /// A source has tags that plain Jinja does not know.
    has_generation_tags: bool,
}

/// What a template's source tells of the messages it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traits {
    /// The shape of contents.
    pub(crate) format: ContentFormat,
    /// Whether it names the role `developer`.
    pub(crate) developer: bool,
}

impl Traits {
    fn of(source: &str) -> Self {
        let developer = source.contains("'developer'") || source.contains("\"developer\"");
        Self { format: ContentFormat::detect(source), developer }
    }
}

impl Templates {
    /// Compiles named templates; of a lone one the name is `default`.
    ///
    /// # Errors
    /// The compiler's message, with the template's name and line.
    pub(crate) fn compile(named: Vec<(String, String)>) -> Result<Self, String> {
        let mut templates = Self {
            folder: environment(FOLDER_FUEL)?,
            request: environment(REQUEST_FUEL)?,
            default: None,
            tool_use: None,
            has_generation_tags: false,
        };
        for (name, source) in named {
            let traits = Traits::of(&source);
            match name.as_str() {
                DEFAULT => templates.default = Some(traits),
                TOOL_USE => templates.tool_use = Some(traits),
                _ => continue,
            }
            let plain = python::rewrite_generation_tags(&source);
            templates.has_generation_tags |= plain != source;
            let source = plain;
            templates.folder.add_template_owned(name, source).map_err(|e| describe(&e))?;
        }
        Ok(templates)
    }

    /// Whether system messages must stand at the front. vLLM finds out by rendering some that do
    /// not, in an environment without the helpers of `transformers`: a template that needs those
    /// counts as one that refuses.
    pub(crate) fn wants_system_first(&self) -> bool {
        let names = [self.default.map(|_| DEFAULT), self.tool_use.map(|_| TOOL_USE)];
        let mut names = names.into_iter().flatten().peekable();
        if self.has_generation_tags || names.peek().is_none() {
            return true;
        }
        let mut plain = self.folder.clone();
        for helper in python::HELPERS {
            plain.remove_global(helper);
        }
        let turn = |role: &str| context!(role => role, content => "t");
        let messages = vec![turn("system"), turn("user"), turn("system"), turn("user")];
        let context = context!(messages => messages, add_generation_prompt => false);
        names.any(|name| {
            let template = plain.get_template(name);
            template.and_then(|template| template.render(&context)).is_err()
        })
    }

    /// The template a request is rendered with: its own if it brought one, else the model's.
    ///
    /// # Errors
    /// [`RenderError::NoTemplate`] if the model has none.
    pub(crate) fn choose<'a>(
        &'a self,
        own: Option<&'a str>,
        has_tools: bool,
    ) -> Result<Chosen<'a>, RenderError> {
        if let Some(source) = own {
            if source.len() > REQUEST_SOURCE_BYTES {
                return Err(RenderError::BadTemplate("it is too long".to_owned()));
            }
            let traits = Traits::of(source);
            return Ok(Chosen { templates: self, which: Which::Own(source), traits });
        }
        let (name, traits) = match (self.tool_use, self.default) {
            (Some(traits), _) if has_tools => (TOOL_USE, traits),
            (_, Some(traits)) => (DEFAULT, traits),
            _ => return Err(RenderError::NoTemplate),
        };
        Ok(Chosen { templates: self, which: Which::Folder(name), traits })
    }
}

/// A template to render with.
pub(crate) struct Chosen<'a> {
    templates: &'a Templates,
    which: Which<'a>,
    /// How it wants messages.
    pub(crate) traits: Traits,
}

enum Which<'a> {
    Folder(&'static str),
    Own(&'a str),
}

impl Chosen<'_> {
    /// Renders with `context`.
    ///
    /// # Errors
    /// When the template does not compile, fails, refuses the request or exceeds its budget.
    pub(crate) fn render(&self, context: Value) -> Result<String, RenderError> {
        match self.which {
            Which::Folder(name) => {
                let template = self.templates.folder.get_template(name).map_err(|e| failure(&e))?;
                render_bounded(&template, context, FOLDER_OUTPUT_BYTES)
            }
            Which::Own(source) => {
                let source = python::rewrite_generation_tags(source);
                let template = self
                    .templates
                    .request
                    .template_from_str(&source)
                    .map_err(|e| RenderError::BadTemplate(describe(&e)))?;
                render_bounded(&template, context, REQUEST_OUTPUT_BYTES)
            }
        }
    }
}

fn render_bounded(
    template: &minijinja::Template<'_, '_>,
    context: Value,
    limit: usize,
) -> Result<String, RenderError> {
    let mut out = Bounded { bytes: Vec::new(), limit };
    template.render_captured_to(context, &mut out).map_err(|e| failure(&e))?;
    String::from_utf8(out.bytes).map_err(|_| RenderError::Template("output is not UTF-8".into()))
}

/// Collects output up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for Bounded {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + buffer.len() > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment(fuel: u64) -> Result<Environment<'static>, String> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| describe(&e))?;
    env.set_syntax(syntax);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(fuel));
    minijinja_contrib::add_to_environment(&mut env);
    python::add_to(&mut env);
    Ok(env)
}

fn failure(error: &minijinja::Error) -> RenderError {
    match error.kind() {
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => RenderError::TooMuch,
        _ => RenderError::Template(describe(error)),
    }
}

/// The error and where in the template it arose; never any of the data.
fn describe(error: &minijinja::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests;
