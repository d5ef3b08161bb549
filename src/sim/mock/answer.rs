//! What the mock answers: words, or a tool call when one is asked for.

use serde_json::{Map, Value, json};

use super::tokens;

/// Tokens of an answer whose request sets no limit.
pub(super) const DEFAULT_TOKENS: u32 = 16;

/// An answer, one piece a token.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// `token1 token2 …`
    Words { tokens: u32, limited: bool },
    /// A call of a tool, its arguments' JSON in pieces.
    Tool { name: String, pieces: Vec<String> },
}

impl Answer {
    /// Words, as many as the request's limit says.
    pub(super) fn words(limit: Option<u64>) -> Self {
        let tokens = limit.map_or(DEFAULT_TOKENS, |limit| u32::try_from(limit).unwrap_or(u32::MAX / 2));
        Self::Words { tokens, limited: limit.is_some() }
    }

    /// Words, or a call of the tool that a chat-like request asks for: `tool_choice` names one, requires one, or leaves
    /// it to the model (`willing`: the last user message is about the weather).
    pub(super) fn for_chat(limit: Option<u64>, tools: Option<&Value>, choice: Option<&Value>, willing: bool) -> Self {
        let tools = tools.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let (wanted, named) = match choice {
            Some(Value::String(mode)) if mode == "none" => (false, None),
            Some(Value::String(mode)) if mode == "required" => (true, None),
            Some(Value::Object(choice)) => match choice.get("type").and_then(Value::as_str) {
                Some("none") => (false, None),
                Some("auto") => (willing, None),
                Some("any") => (true, None),
                _ => {
                    let function = choice.get("function").and_then(Value::as_object).unwrap_or(choice);
                    (true, function.get("name").and_then(Value::as_str))
                }
            },
            _ => (willing, None),
        };
        let tool = tools
            .iter()
            .map(|tool| tool.get("function").unwrap_or(tool))
            .find(|tool| named.is_none_or(|named| tool["name"].as_str() == Some(named)) && tool["name"].is_string());
        match tool {
            Some(tool) if wanted => Self::tool(tool),
            _ => Self::words(limit),
        }
    }

    fn tool(tool: &Value) -> Self {
        let schema = ["parameters", "input_schema"].iter().find_map(|key| tool.get(key)).unwrap_or(&Value::Null);
        let arguments = example(schema).to_string();
        let mut pieces = Vec::new();
        let mut rest = arguments.as_str();
        while !rest.is_empty() {
            let cut = rest.char_indices().nth(4).map_or(rest.len(), |(at, _)| at);
            let (piece, tail) = rest.split_at(cut);
            pieces.push(piece.to_owned());
            rest = tail;
        }
        Self::Tool { name: tool["name"].as_str().unwrap_or_default().to_owned(), pieces }
    }

    /// Tokens of it.
    pub(super) fn len(&self) -> u32 {
        match self {
            Self::Words { tokens, .. } => *tokens,
            Self::Tool { pieces, .. } => pieces.len() as u32,
        }
    }

    /// Whether it ends because the request's limit is reached.
    pub(super) fn limited(&self) -> bool {
        matches!(self, Self::Words { limited: true, .. })
    }

    /// The tool it calls.
    pub(super) fn tool_name(&self) -> Option<&str> {
        match self {
            Self::Words { .. } => None,
            Self::Tool { name, .. } => Some(name),
        }
    }

    /// Appends the text of one token.
    pub(super) fn piece(&self, index: u32, into: &mut String) {
        match self {
            Self::Words { .. } => tokens::word(index, into),
            Self::Tool { pieces, .. } => into.push_str(pieces.get(index as usize).map_or("", String::as_str)),
        }
    }

    /// All of its text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        (0..self.len()).for_each(|index| self.piece(index, &mut text));
        text
    }
}

/// A value that fits a JSON schema, near enough: required properties, first choices.
fn example(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|choices| choices.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!("Paris"),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("null") => Value::Null,
        _ => {
            let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
            let fields = required.iter().filter_map(Value::as_str);
            Value::Object(
                fields.map(|name| (name.to_owned(), example(&schema["properties"][name]))).collect::<Map<_, _>>(),
            )
        }
    }
}
