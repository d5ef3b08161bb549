//! Whether a template reads a message's content as one text or as a list of parts.
//!
//! By the rule of vLLM (`_detect_content_format`, 0.10 to 0.32): parts, where the template loops over
//! `message.content` of a message that it took out of `messages` by a loop; else one text.
use minijinja::machinery::ast::{Expr, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

use super::messages::ContentForm;

/// The form that a template reads; [`ContentForm::Text`] where its source can't be parsed.
pub(super) fn content_form(source: &str, syntax: SyntaxConfig) -> ContentForm {
    let Ok(root) = parse(source, "chat_template", syntax) else { return ContentForm::Text };
    let (mut loops, mut sets) = (Vec::new(), Vec::new());
    each(&root, &mut |stmt| match stmt {
        Stmt::ForLoop(each) => loops.push(each),
        Stmt::Set(set) => {
            if let Expr::Var(target) = &set.target {
                sets.push((target.id, &set.expr));
            }
        }
        _ => {}
    });

    // Names for `messages`, or for a part of it.
    let mut lists = vec!["messages"];
    let mut at = 0;
    while at < lists.len() {
        for (name, value) in &sets {
            if names(value, lists[at], None) && !lists.contains(name) {
                lists.push(name);
            }
        }
        at += 1;
    }
    // A loop into several names: vLLM gives up there, and takes the content for a text.
    let mut items = Vec::new();
    for each in loops.iter().filter(|each| lists.iter().any(|list| names(&each.iter, list, None))) {
        let Expr::Var(target) = &each.target else { return ContentForm::Text };
        items.push(target.id);
    }
    for each in &loops {
        if items.iter().any(|item| names(&each.iter, item, Some("content"))) {
            return if matches!(each.target, Expr::Var(_)) { ContentForm::Parts } else { ContentForm::Text };
        }
    }
    ContentForm::Text
}

/// Whether an expression is `variable`, or `variable.key`; filtered, tested or sliced too.
fn names(expr: &Expr<'_>, variable: &str, key: Option<&str>) -> bool {
    let is = |expr: &Expr<'_>| matches!(expr, Expr::Var(var) if var.id == variable);
    match expr {
        Expr::Filter(filter) => filter.expr.as_ref().is_some_and(|expr| names(expr, variable, key)),
        Expr::Test(test) => names(&test.expr, variable, key),
        Expr::Slice(slice) => names(&slice.expr, variable, key),
        Expr::GetAttr(attr) => key.is_some_and(|key| attr.name == key && is(&attr.expr)),
        Expr::GetItem(item) => {
            let subscript = matches!(&item.subscript_expr, Expr::Const(name) if name.value.as_str() == key);
            key.is_some() && subscript && is(&item.expr)
        }
        _ => key.is_none() && is(expr),
    }
}

/// Calls `with` with each statement, in their order.
pub(super) fn each<'t, 's>(stmt: &'t Stmt<'s>, with: &mut impl FnMut(&'t Stmt<'s>)) {
    with(stmt);
    let mut all = |list: &'t [Stmt<'s>]| list.iter().for_each(|stmt| each(stmt, with));
    match stmt {
        Stmt::Template(template) => all(&template.children),
        Stmt::IfCond(cond) => {
            all(&cond.true_body);
            all(&cond.false_body);
        }
        Stmt::WithBlock(block) => all(&block.body),
        Stmt::SetBlock(block) => all(&block.body),
        Stmt::AutoEscape(block) => all(&block.body),
        Stmt::FilterBlock(block) => all(&block.body),
        Stmt::Macro(block) => all(&block.body),
        Stmt::CallBlock(block) => all(&block.macro_decl.body),
        Stmt::ForLoop(each) => {
            all(&each.body);
            all(&each.else_body);
        }
        _ => {}
    }
}
