//! The texts: who says what in which turn. Fixed by the round's number, the same on every machine.
use fastrand::Rng;
use serde_json::{Value, json};
use warmroute::prefix::{Basis, Chain, TOKEN_BYTES, root};

const WORDS: &[&str] = &[
    "account", "after", "amount", "answer", "because", "before", "branch", "budget", "change", "column", "contract",
    "customer", "deadline", "deliver", "design", "detail", "discount", "draft", "engine", "error", "estimate", "every",
    "example", "field", "figure", "first", "function", "growth", "however", "index", "invoice", "issue", "item",
    "language", "letter", "limit", "market", "meeting", "message", "method", "minute", "model", "month", "number",
];

/// So many characters of words, drawn from the numbers.
pub fn words(characters: usize, round: u64, session: u64, turn: u64) -> String {
    let mut rng = Rng::with_seed(round << 40 ^ session << 16 ^ turn);
    let mut text = String::with_capacity(characters + 10);
    while text.len() < characters {
        text.push_str(WORDS[rng.usize(..WORDS.len())]);
        text.push(' ');
    }
    // The words are ASCII: any byte is a boundary.
    text.truncate(characters);
    text
}

/// Tokens of the answer to a session's turn.
pub fn answer_tokens(seed: u64, session: u64, turn: u64) -> u32 {
    Rng::with_seed(seed << 40 ^ session << 16 ^ turn).u32(super::ANSWER_TOKENS)
}

/// One conversation so far, and its text in blocks.
#[derive(Debug)]
pub struct Conversation {
    messages: Vec<Value>,
    chain: Chain,
}

impl Conversation {
    /// Begins with its system prompt.
    pub fn new(system: String) -> Self {
        let chain = Chain::new(root(Basis::Text, "placement", None, None));
        let mut conversation = Self { messages: Vec::new(), chain };
        conversation.say("system", system);
        conversation
    }

    /// Goes on.
    pub fn say(&mut self, role: &str, text: String) {
        self.chain.push_text(role.as_bytes());
        self.chain.push_text(text.as_bytes());
        self.messages.push(json!({"role": role, "content": text}));
    }

    /// The body of a request for the next answer.
    pub fn body(&self, model: &str, max_tokens: u32) -> String {
        json!({"model": model, "messages": self.messages, "max_tokens": max_tokens}).to_string()
    }

    /// Hashes of its whole blocks of 16 × 4 bytes.
    pub fn blocks(&self) -> Vec<u64> {
        self.chain.hashes().to_vec()
    }

    /// Its tokens, at [`TOKEN_BYTES`] each.
    pub fn tokens(&self) -> usize {
        debug_assert_eq!(TOKEN_BYTES, 4);
        self.chain.tokens()
    }
}
