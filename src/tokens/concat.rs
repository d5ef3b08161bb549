//! Texts that a template adds up only to print them, printed one after the other.
//!
//! `{{ '<|user|>' + message.content + '<|end|>' }}` copies the content with each `+`. Where one of what is added stands
//! in the template as a text, the others are texts, too, or the template fails: so each can be printed by itself, once
//! it was looked at ([`only_text`]). Only names, and what is looked up in them, are taken; all else stays as it is.
use minijinja::machinery::ast::{BinOpKind, Expr, Stmt};
use minijinja::machinery::{parse, parse_expr};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

use super::form::each;

/// The filter's name.
pub(super) const ONLY_TEXT: &str = "only_text_";

/// The filter: its value, if that is a text.
pub(super) fn only_text(value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value),
        None => Err(Error::new(ErrorKind::InvalidOperation, "only texts can be added to a text")),
    }
}

/// The template with such sums taken apart; itself where it can't be parsed.
pub(super) fn apart(source: &str, syntax: SyntaxConfig) -> String {
    let mut parts = Vec::new();
    if let Ok(root) = parse(source, "chat_template", syntax) {
        each(&root, &mut |stmt| {
            if let Stmt::EmitExpr(emit) = stmt
                && let Expr::BinOp(sum) = &emit.expr
                && let Some(printed) = printed(&emit.expr)
            {
                let span = sum.span();
                parts.push((span.start_offset as usize..span.end_offset as usize, printed));
            }
        });
    }
    parts.sort_by_key(|(range, _)| range.start);
    let (mut out, mut end) = (String::with_capacity(source.len()), 0);
    for (range, printed) in parts {
        let (Some(between), Some(after)) = (source.get(end..range.start), source.get(range.end..)) else { continue };
        // All that stands between the braces, and not within parentheses there.
        let opens = between.trim_end().trim_end_matches(['-', '+']).ends_with("{{");
        let closes = after.trim_start().trim_start_matches(['-', '+']).starts_with("}}");
        if opens && closes {
            out.push_str(between);
            out.push_str(&printed);
            end = range.end;
        }
    }
    out.push_str(&source[end..]);
    out
}

/// What a sum is replaced by, without the outer braces.
fn printed(sum: &Expr<'_>) -> Option<String> {
    let mut terms = Vec::new();
    flatten(sum, &mut terms)?;
    let mut printed = String::new();
    let (mut text, mut texts) = (String::new(), false);
    let mut print = |item: &str| {
        if !printed.is_empty() {
            printed.push_str(" }}{{ ");
        }
        printed.push_str(item);
    };
    for term in terms {
        match term {
            Expr::Const(literal) => {
                text.push_str(literal.value.as_str()?);
                texts = true;
            }
            term => {
                if !text.is_empty() {
                    print(&literal(&std::mem::take(&mut text))?);
                }
                print(&format!("{}|{ONLY_TEXT}", path(term)?));
            }
        }
    }
    if !text.is_empty() {
        print(&literal(&text)?);
    }
    texts.then_some(printed).filter(|printed| !printed.is_empty())
}

/// The terms of a sum, from left to right.
fn flatten<'t, 's>(expr: &'t Expr<'s>, terms: &mut Vec<&'t Expr<'s>>) -> Option<()> {
    match expr {
        Expr::BinOp(sum) => {
            matches!(sum.op, BinOpKind::Add).then_some(())?;
            flatten(&sum.left, terms)?;
            flatten(&sum.right, terms)
        }
        expr => {
            terms.push(expr);
            Some(())
        }
    }
}

/// A name, or what is looked up in one by constants, as it is written.
fn path(expr: &Expr<'_>) -> Option<String> {
    match expr {
        Expr::Var(var) => Some(var.id.to_owned()),
        Expr::GetAttr(attr) => Some(format!("{}.{}", path(&attr.expr)?, attr.name)),
        Expr::GetItem(item) => {
            let Expr::Const(subscript) = &item.subscript_expr else { return None };
            let subscript = match subscript.value.as_str() {
                Some(text) => literal(text)?,
                None => subscript.value.as_usize()?.to_string(),
            };
            Some(format!("{}[{subscript}]", path(&item.expr)?))
        }
        _ => None,
    }
}

/// A text as a template writes it.
fn literal(text: &str) -> Option<String> {
    let literal = serde_json::Value::from(text).to_string();
    let read = parse_expr(&literal).ok()?;
    matches!(&read, Expr::Const(read) if read.value.as_str() == Some(text)).then_some(literal)
}

#[cfg(test)]
mod tests {
    use minijinja::context;
    use proptest::prelude::*;

    use super::super::environment::{NAME, environment, syntax};
    use super::*;

    fn taken(source: &str) -> String {
        apart(source, syntax().expect("a syntax"))
    }

    /// Which of two failures comes first may differ: nobody is told of either.
    fn rendered(source: &str) -> Option<String> {
        let env = environment(source.to_owned(), 100_000).ok()?;
        let message = context! { role => "user", content => "a 'b' \"c\"\n", none => (), n => 7, list => vec!["x"], map => context! { s => "deep" } };
        let all = context! { message, messages => vec!["first", "second"], s => "text", n => 1, list => vec!["y"] };
        env.get_template(NAME).and_then(|template| template.render(all)).ok()
    }

    #[test]
    fn sums_of_texts_are_printed_one_by_one() {
        let qwen = r"{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}";
        let apart = r#"{{- "<|im_start|>" }}{{ message.role|only_text_ }}{{ "\n" }}{{ message.content|only_text_ }}{{ "<|im_end|>\n" }}"#;
        assert_eq!(taken(qwen), apart);
        assert_eq!(taken("{{'<u>' + message['content']}} x"), r#"{{"<u>" }}{{ message["content"]|only_text_}} x"#);
        assert_eq!(taken("{{ messages[0] + 'a' -}} x"), r#"{{ messages[0]|only_text_ }}{{ "a" -}} x"#);
    }

    #[test]
    fn all_else_stays() {
        for source in [
            "{{ a + b }}",
            "{{ a + 1 }}",
            "{{ ('a' + b) }}",
            "{{ 'a' + b|trim }}",
            "{{ ('a' + b)|trim }}",
            "{{ 'a' + b.c() }}",
            "{{ 'a' ~ b }}",
            "{{ 'a' + (b if c else d) }}",
            "{{ 'a' + b[c] }}",
            "{{ 'a' + b[1:] }}",
            "{{ 'a' * 3 + b }}",
            "{{ 'a' + b == 'c' }}",
            "{% set x = 'a' + b %}",
            "{{ f('a' + b) }}",
            "{% if 'a' + b %}{% endif %}",
            "{{ 'a' }}",
            "{{ '' + '' }}",
            "{{",
            "{{ 'a' + }}",
            "{{ 'a' + 1 }}",
            "{{ 'a' + b[-1] }}",
            "{# {{ 'a' + b }} #}",
            "{% raw %}{{ 'a' + b }}{% endraw %}",
            "{{ -('a' + b) }}",
        ] {
            assert_eq!(taken(source), source);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(5), failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

        #[test]
        fn a_template_taken_apart_renders_the_same(sums in prop::collection::vec((
            prop::collection::vec(prop::sample::select(vec![
                "'lit'", "\"}}\"", "'{{ '", "'\\n'", "'\\u00e9\\\\'", "''", "s", "message.role", "message['content']", "message.map.s", "messages[1]",
                "n", "message.n", "list", "message.none", "unknown", "message.unknown", "unknown.deeper", "(s + s)", "(n + n)", "('a' + s)", "s|upper",
                "message.role.strip()", "(s if n else n)", "1",
            ]), 1..5),
            prop::sample::select(vec!["{{ ", "{{- ", "{{", " \n{{+ ", "{{ (", "x\n  {{-"]),
            prop::sample::select(vec![" }}", " -}}", "}}", " +}}\n", ") }}", "-}}  \n y"]),
        ), 1..4)) {
            let source: String = sums.into_iter().map(|(terms, open, close)| format!("{open}{}{close}", terms.join(" + "))).collect();
            prop_assert_eq!(rendered(&taken(&source)), rendered(&source), "{} -> {}", source, taken(&source));
        }
    }
}
