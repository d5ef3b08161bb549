//! What Jinja templates take from Python: how values are printed, `tojson`, and methods of strings.
//!
//! Only where minijinja and its `pycompat` differ from Python (3.11) in what chat templates can show.
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State};

/// Values nested deeper than this are refused, as Python does at about a thousand.
pub(super) const MAX_DEPTH: usize = 128;

/// Prints a value as Python's `str()` does.
pub(super) fn print(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return Ok(out.write_str(text)?);
    }
    let mut text = String::new();
    display(value, &mut text)?;
    Ok(out.write_str(&text)?)
}

/// Python's `str()`.
fn display(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => repr(value, out, 0)?,
    }
    Ok(())
}

/// The filter `string`.
pub(super) fn string(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let mut text = String::new();
    display(value, &mut text)?;
    Ok(Value::from(text))
}

fn deeper(depth: usize) -> Result<usize, Error> {
    if depth >= MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
    }
    Ok(depth + 1)
}

/// Python's `repr()` of JSON's values.
fn repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Number => number(value, out),
        ValueKind::Seq => {
            let depth = deeper(depth)?;
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (at, item) in value.try_iter()?.enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                repr(&item, out, depth)?;
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            let depth = deeper(depth)?;
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                repr(&key, out, depth)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, depth)?;
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// A string as Python writes it in its source.
fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) || c == '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

/// A number as Python prints it, in `str()` and in JSON alike.
fn number(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => out.push_str(&float_repr(float)),
        _ => out.push_str(&value.to_string()),
    }
}

/// `repr()` of a float: the shortest digits that give it back, with an exponent from 1e16 on and below 1e-4.
fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "nan".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if float == 0.0 || (1e-4..1e16).contains(&float.abs()) {
        return format!("{float:?}");
    }
    let text = format!("{float:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The filter `tojson` as transformers has it: `json.dumps(x, ensure_ascii=False, indent=…, separators=…,
/// sort_keys=…)`.
pub(super) fn tojson(
    value: &Value,
    ascii: Option<bool>,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let named = |name: &str| options.get::<Option<Value>>(name).map(Option::unwrap_or_default);
    let indent = indent.unwrap_or(named("indent")?);
    let ascii = ascii.unwrap_or(named("ensure_ascii")?.is_true());
    let sort = named("sort_keys")?.is_true();
    let separators = named("separators")?;
    options.assert_all_used()?;
    let indent = match indent.as_str() {
        Some(text) => Some(text.to_owned()),
        None if indent.is_none() || indent.is_undefined() => None,
        None => Some(" ".repeat(usize::try_from(indent)?.min(64))),
    };
    let (mut item, mut pair) = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if separators.kind() == ValueKind::Seq {
        item = separators.get_item_by_index(0)?.to_string();
        pair = separators.get_item_by_index(1)?.to_string();
    }
    let mut json = Json { out: String::new(), ascii, sort, indent, item, pair };
    json.value(value, 0)?;
    Ok(Value::from(json.out))
}

/// A writer of JSON in Python's manner.
struct Json {
    out: String,
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    pair: String,
}

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(float) if !value.is_integer() && !float.is_finite() => self.out.push_str(if float.is_nan() {
                    "NaN"
                } else if float > 0.0 {
                    "Infinity"
                } else {
                    "-Infinity"
                }),
                _ => number(value, &mut self.out),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let depth = deeper(depth)?;
                self.out.push('[');
                let mut any = false;
                for item in value.try_iter()? {
                    self.line(any, depth);
                    any = true;
                    self.value(&item, depth)?;
                }
                self.close(any, depth, ']');
            }
            ValueKind::Map => {
                let depth = deeper(depth)?;
                self.out.push('{');
                let mut any = false;
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                for key in keys {
                    self.line(any, depth);
                    any = true;
                    match key.as_str() {
                        Some(text) => self.string(text),
                        None => {
                            self.out.push('"');
                            self.value(&key, depth)?;
                            self.out.push('"');
                        }
                    }
                    self.out.push_str(&self.pair);
                    self.value(&value.get_item(&key)?, depth)?;
                }
                self.close(any, depth, '}');
            }
            kind => {
                return Err(Error::new(ErrorKind::BadSerialization, format!("{kind} is not JSON serializable")));
            }
        }
        Ok(())
    }

    /// What stands before an item.
    fn line(&mut self, comma: bool, depth: usize) {
        if comma {
            self.out.push_str(&self.item);
        }
        self.newline(depth);
    }

    fn newline(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) {
        if any {
            self.newline(depth - 1);
        }
        self.out.push(bracket);
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        let mut rest = text;
        while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\' || (self.ascii && c > '~')) {
            self.out.push_str(&rest[..at]);
            let c = rest[at..].chars().next().unwrap_or_default();
            rest = &rest[at + c.len_utf8()..];
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| self.out.push_str(&format!("\\u{unit:04x}"))),
            }
        }
        self.out.push_str(rest);
        self.out.push('"');
    }
}

/// What `str.isspace` holds for: Rust's white space, and four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Methods of Python's types that minijinja lacks, or that its `pycompat` has otherwise.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let within = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            let text = if name == "rstrip" { text } else { text.trim_start_matches(within) };
            let text = if name == "lstrip" { text } else { text.trim_end_matches(within) };
            Ok(if text.len() == value.as_str().map_or(0, str::len) { value.clone() } else { Value::from(text) })
        }
        "split" if args.iter().all(|arg| arg.is_none()) => {
            let words = text.split(is_space).filter(|word| !word.is_empty());
            state.consume_fuel(text.len() as u64 / 16)?;
            Ok(words.map(Value::from).collect())
        }
        "splitlines" if args.is_empty() => {
            state.consume_fuel(text.len() as u64 / 16)?;
            Ok(lines(text).into_iter().map(Value::from).collect())
        }
        "title" if args.is_empty() => {
            state.consume_fuel(text.len() as u64 / 16)?;
            let (mut title, mut inside) = (String::with_capacity(text.len()), false);
            for c in text.chars() {
                if inside {
                    title.extend(c.to_lowercase());
                } else {
                    title.extend(c.to_uppercase());
                }
                inside = c.is_lowercase() || c.is_uppercase();
            }
            Ok(Value::from(title))
        }
        "removeprefix" => {
            let (affix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(affix).map_or_else(|| value.clone(), Value::from))
        }
        "removesuffix" => {
            let (affix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(affix).map_or_else(|| value.clone(), Value::from))
        }
        "partition" | "rpartition" => {
            let (mark,): (&str,) = from_args(args)?;
            if mark.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let found = if name == "partition" { text.split_once(mark) } else { text.rsplit_once(mark) };
            let three = match found {
                Some((head, tail)) => [head, mark, tail],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Ok(Value::from(Tuple::from(three.map(Value::from).to_vec())))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// The filter `trim`.
pub(super) fn trim(value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    let text = string(value)?;
    let text = text.as_str().unwrap_or_default();
    Ok(Value::from(text.trim_matches(|c| chars.map_or_else(|| is_space(c), |chars| chars.contains(c)))))
}

/// `str.splitlines()`.
fn lines(text: &str) -> Vec<&str> {
    let ends =
        |c| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends) {
        lines.push(&rest[..at]);
        let end = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = if rest[at..].starts_with("\r\n") { 2 } else { end };
        rest = &rest[at + end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
