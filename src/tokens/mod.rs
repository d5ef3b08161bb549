//! A prompt's parts → the blocks that an engine will have of it.
//!
//! [`Encoder`] is a pool's: it renders a chat by the model's own template, encodes by the model's own tokenizer, and
//! chains the ids into blocks. Where that cannot be, the canonical text of the same parts is cut instead, and the
//! [`Fallback`] says why. All of this is CPU work; callers keep long prompts off async threads.
mod answer;
mod boundary;
mod budget;
mod canonical;
mod concat;
mod cuts;
mod encoder;
mod environment;
mod form;
pub(crate) mod json;
mod messages;
mod pool;
mod prompt;
mod python;
pub(crate) mod reader;
mod strftime;
mod template;
mod tokenizer;

pub use answer::last_answer;
pub use boundary::CacheStats;
pub(crate) use budget::LONGEST;
pub use cuts::CutPoints;
pub use encoder::{Encoded, Encoder, Fallback, LoadError, after_load};
pub use prompt::{Chat, Content, Messages, Prompt};
pub use template::{Rendered, Template, TemplateError};
pub use tokenizer::{EncodeError, Tokenizer};
