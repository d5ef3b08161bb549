//! Other people's rules by name, `simulate` only: each as its authors describe and ship it, with their defaults, so that
//! the product's policies have someone to be measured against.
//!
//! Each has a file that says where the rule comes from, what it is, and what was left out. They see what their authors
//! see: `dynamo_sum`, `sgl_balanced` and `lmetric` the true caches, as an index fed by the engines' events would;
//! `preble` a tree of its own placements; `bounded_hash` no cache at all. Load is what each has booked itself.
mod books;
mod bounded_hash;
mod dynamo_sum;
mod lmetric;
mod preble;
mod sgl_balanced;
#[cfg(test)]
mod tests;

pub(super) use books::Booked;

use bounded_hash::BoundedHash;
use dynamo_sum::DynamoSum;
use lmetric::Lmetric;
use preble::Preble;
use sgl_balanced::SglBalanced;

use super::Chooser;
use crate::routing::Reason;
use crate::sim::prefill::PrefillModel;

/// A rule of another project or paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    /// NVIDIA Dynamo's sum of prefill and decode blocks.
    DynamoSum,
    /// SGLang's router, `cache_aware` with the affinity mode `balanced`.
    SglBalanced,
    /// Consistent hashing with bounded loads.
    BoundedHash,
    /// Preble's E2: exploit or explore.
    Preble,
    /// LMetric's product of new prefill tokens and batch size.
    Lmetric,
}

impl Rival {
    const ALL: [Self; 5] = [Self::DynamoSum, Self::SglBalanced, Self::BoundedHash, Self::Preble, Self::Lmetric];

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rival| rival.as_str() == name)
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DynamoSum => "dynamo_sum",
            Self::SglBalanced => "sgl_balanced",
            Self::BoundedHash => "bounded_hash",
            Self::Preble => "preble",
            Self::Lmetric => "lmetric",
        }
    }

    /// The rule before a fleet; see [`super::Rule::on`].
    #[must_use]
    pub fn on(
        self,
        replicas: usize,
        cache_tokens: u64,
        prefill: &PrefillModel,
        decode_tps: f64,
        seed: u64,
    ) -> Box<dyn Chooser> {
        match self {
            Self::DynamoSum => Box::new(DynamoSum::new(replicas, seed)),
            Self::SglBalanced => Box::new(SglBalanced::new(replicas, seed)),
            Self::BoundedHash => Box::new(BoundedHash::new(replicas)),
            Self::Preble => Box::new(Preble::new(replicas, cache_tokens, *prefill, decode_tps)),
            Self::Lmetric => Box::new(Lmetric::new(replicas)),
        }
    }
}

/// Why a score chose a replica that holds so many tokens of the prompt.
fn reason(held: u32) -> Reason {
    if held > 0 { Reason::Prefix } else { Reason::LeastLoad }
}
