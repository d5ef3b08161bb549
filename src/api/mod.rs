//! What clients speak: which endpoints exist, what routing reads from their bodies, and how errors look in each family.
//!
//! Only what routing needs is read; whatever is not understood passes unparsed.
mod body;
mod endpoint;
mod error;
mod multipart;
mod prompt;
mod session;
mod splice;
mod sse;
mod stored;

pub use body::{Hints, ModelName, Part, Parts, read};
pub use endpoint::{Body, Endpoint, Family, Route, find};
pub use error::{Cause, Origin, Phase, error_body, stream_error};
pub use multipart::{boundary, read as read_form};
pub use prompt::{prompt, prompt_of};
pub use session::{Source, key_from_body, key_from_head, scope, unusable};
pub use splice::{Edit, splice, takes_stream_options};
pub use sse::Scanner;
pub use stored::IdObserver;
