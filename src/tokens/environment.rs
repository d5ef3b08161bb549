//! The Jinja environment that `transformers` (4.4x to 5.24) renders chat templates in, by minijinja.
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};

use super::{concat, python, strftime};

/// The name of the one template in an environment.
pub(super) const NAME: &str = "chat_template";

/// A template said, by `raise_exception`, that it doesn't take these messages.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refusal(pub String);

/// Blocks as transformers cuts them.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// An environment with one template, compiled.
pub(super) fn environment(source: String, fuel: u64) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(syntax()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_fuel(Some(fuel));
    env.set_formatter(python::print);
    env.set_unknown_method_callback(python::method);
    env.add_filter("tojson", python::tojson);
    env.add_filter("string", python::string);
    env.add_filter("trim", python::trim);
    env.add_filter(concat::ONLY_TEXT, concat::only_text);
    env.add_function("strftime_now", strftime::now);
    env.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refusal(message)))
    });
    env.add_template_owned(NAME, source)?;
    Ok(env)
}

/// A template's source as Jinja's lexer sees it: lines end by `\n`, and transformers' `{% generation %}`, which marks
/// what the assistant wrote and prints nothing, is a plain scope.
pub(super) fn source(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let inside = tag[..end].trim_start_matches("{%").trim_end_matches("%}");
        match inside.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag[..end].replace("generation", "with")),
            "endgeneration" => out.push_str(&tag[..end].replace("endgeneration", "endwith")),
            _ => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}
