//! `${NAME}` and `${NAME:-default}` in a scalar; `$$` is a dollar sign.

/// The text with its variables filled in; the error says what is wrong, and never shows a variable's content.
pub(super) fn interpolate(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(inner) = after.strip_prefix('{') {
            let Some((variable, after)) = inner.split_once('}') else {
                return Err("`${` is never closed by `}`".into());
            };
            out.push_str(&value_of(variable, env)?);
            rest = after;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn value_of(variable: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (name, default) = match variable.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (variable, None),
    };
    let valid = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !valid {
        return Err("the name between `${` and `}` is not a variable's name".into());
    }
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!("the environment variable `{name}` is not set")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, String> {
        interpolate(text, &|name| match name {
            "HOST" => Some("10.0.0.1".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        })
    }

    #[test]
    fn fills_in() {
        assert_eq!(fill("http://${HOST}:${PORT:-8000}/").as_deref(), Ok("http://10.0.0.1:8000/"));
        assert_eq!(fill("${HOST:-x}${EMPTY:-y}${EMPTY}").as_deref(), Ok("10.0.0.1y"));
        assert_eq!(fill("$${HOST} costs $5$").as_deref(), Ok("${HOST} costs $5$"));
    }

    #[test]
    fn refuses() {
        assert_eq!(fill("${PORT}").unwrap_err(), "the environment variable `PORT` is not set");
        assert_eq!(fill("${HOST").unwrap_err(), "`${` is never closed by `}`");
        assert_eq!(fill("${HO ST}").unwrap_err(), "the name between `${` and `}` is not a variable's name");
    }
}
