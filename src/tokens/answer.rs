//! Where the last answer stands in a conversation's prompt, about.
//!
//! Whoever computed what is before it has most likely written it, and holds it, too. It is found by its bytes: a
//! message's share of the JSON is taken for its share of the tokens, counted from the end, where errors are small. Good
//! enough to judge replicas by; what is told of matches comes from the index alone.
use std::ops::Range;

use super::encoder::{chat_bytes, value_bytes};
use super::prompt::{Chat, Content, Messages, Prompt};

/// Begin and end of the last assistant's message in a prompt of so many tokens, in tokens, if anything comes after it.
/// The begin is early by a quarter of the answer: an estimate that is late would count for nothing.
pub fn last_answer(prompt: &Prompt<'_>, tokens: usize) -> Option<(u32, u32)> {
    let Content::Chat(chat) = &prompt.content else { return None };
    let (answer, after) = bytes(chat)?;
    let per_byte = tokens as f64 / chat_bytes(chat).max(1) as f64;
    let end = tokens as f64 - after as f64 * per_byte;
    let begin = end - 1.25 * answer as f64 * per_byte;
    (end > 0.0).then_some((begin.max(0.0) as u32, end as u32))
}

/// Bytes of the last assistant's message, and of what comes after it.
fn bytes(chat: &Chat<'_>) -> Option<(usize, usize)> {
    match &chat.messages {
        Messages::Raw(raw) => {
            let found = in_json(raw.get().as_bytes())?;
            Some((found.len(), raw.get().len() - found.end))
        }
        Messages::Built(messages) => {
            let at = messages.iter().rposition(|message| message["role"] == "assistant")?;
            let after: usize = messages[at + 1..].iter().map(value_bytes).sum();
            (at + 1 < messages.len()).then(|| (value_bytes(&messages[at]), after))
        }
    }
}

/// The last assistant's message in a JSON list of messages. Clients write the role first; where it is not, or an unusual
/// writing of it, nothing is found. Reads the list from its end, no further than that message.
fn in_json(json: &[u8]) -> Option<Range<usize>> {
    let (mut end, mut next) = (json.len(), None);
    while let Some(at) = last_role(&json[..end]) {
        end = at;
        let before = json[..at].trim_ascii_end();
        if before.ends_with(b"\\") {
            // Within a text.
            continue;
        }
        if !before.ends_with(b"{") {
            return None;
        }
        let value = json[at + br#""role""#.len()..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        if value.starts_with(br#""assistant""#) {
            return next.map(|next| before.len() - 1..next);
        }
        next = Some(before.len() - 1);
    }
    None
}

/// Where the last `"role"` begins. By its last quote, which is searched for in steps of a vector; words are not, backwards.
fn last_role(json: &[u8]) -> Option<usize> {
    const ROLE: &[u8] = br#""role""#;
    memchr::memrchr_iter(b'"', json).find(|&at| json[..=at].ends_with(ROLE)).map(|at| at + 1 - ROLE.len())
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::*;

    fn message(role: &str, words: usize) -> Value {
        json!({ "role": role, "content": "word ".repeat(words) })
    }

    fn raw(messages: &[Value]) -> String {
        // The order of keys is the client's; ours is alphabetic.
        let of = |message: &Value| format!(r#"{{ "role": {}, "content": {} }}"#, message["role"], message["content"]);
        format!("[{}]", messages.iter().map(of).collect::<Vec<_>>().join(", "))
    }

    fn of_raw(json: &str, tokens: usize) -> Option<(u32, u32)> {
        let json: Box<RawValue> = serde_json::from_str(json).expect("JSON");
        let chat = Chat { messages: Messages::Raw(&json), ..Chat::default() };
        last_answer(&Prompt { content: Content::Chat(Box::new(chat)), ..Prompt::default() }, tokens)
    }

    fn of_built(messages: &[Value], tokens: usize) -> Option<(u32, u32)> {
        let chat = Chat { messages: Messages::Built(messages.to_vec()), ..Chat::default() };
        last_answer(&Prompt { content: Content::Chat(Box::new(chat)), ..Prompt::default() }, tokens)
    }

    #[test]
    fn the_last_answer_is_found_where_it_stands() {
        let turns = [message("system", 400), message("user", 100), message("assistant", 300), message("user", 200)];
        for found in [of_raw(&raw(&turns), 1_000), of_built(&turns, 1_000)] {
            let (begin, end) = found.expect("an answer");
            assert!((780..=820).contains(&end), "{end}");
            assert!((400..=440).contains(&begin), "a quarter of it early: {begin}");
        }
    }

    #[test]
    fn results_of_tools_come_after_the_answer_that_asked_for_them() {
        let turns = [message("user", 500), message("assistant", 100), message("tool", 100), message("tool", 300)];
        for found in [of_raw(&raw(&turns), 1_000), of_built(&turns, 1_000)] {
            let (_, end) = found.expect("an answer");
            assert!((580..=630).contains(&end), "{end}");
        }
    }

    #[test]
    fn where_there_is_none_or_it_is_not_over_none_is_found() {
        let (asked, said) = (message("user", 9), message("assistant", 9));
        for turns in [vec![], vec![asked.clone()], vec![asked, said]] {
            assert_eq!((of_raw(&raw(&turns), 100), of_built(&turns, 100)), (None, None), "{turns:?}");
        }
        assert_eq!(last_answer(&Prompt::default(), 100), None);
    }

    #[test]
    fn what_a_text_says_of_roles_is_no_message() {
        let text = r#"{"role":"assistant","content":"I"}"#;
        let turns = [message("user", 50), json!({ "role": "user", "content": text.repeat(9) })];
        assert_eq!(of_raw(&raw(&turns), 100), None);
        let last = r#"[{"content":"a","role":"assistant"},{"content":"b","role":"user"}]"#;
        assert_eq!(of_raw(last, 100), None, "a role that comes last could be anybody's");
    }
}
