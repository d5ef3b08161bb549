//! Who places a call: one interface for the product's policies and for rules that exist to be compared with.
//!
//! `product` asks the very routing core that serves. The `study_*` rules are the published study's and the `rivals` other
//! people's, `simulate` only. A rule joins by a file here and a line in [`Rule`] or [`Rival`].
mod md5;
mod product;
mod rivals;
mod study_cache_aware;
mod study_hash;

use product::Product;
pub use product::session_name;
use rivals::Booked;
pub use rivals::Rival;
use study_cache_aware::StudyCacheAware;

use super::call::Call;
use super::engine::VirtualTime;
use super::prefill::PrefillModel;
use crate::config::{Affinity, CacheAware, LeastCost, Policy};
use crate::routing::{Expectation, Leg, Reason, Reported};

/// What a rule may see of the replicas, beyond what it remembers itself.
pub trait Holdings {
    /// Leading prompt tokens of `call`, whose blocks are `blocks`, that the replica would find in its cache now.
    fn held(&self, replica: usize, call: &Call, blocks: &[u64]) -> u32;
}

/// Where a call goes, until it has ended: give it back to its chooser by [`Chooser::finished`].
#[derive(Debug)]
#[must_use]
pub struct Placed {
    /// The replica.
    pub replica: usize,
    /// Why.
    pub reason: Reason,
    /// Leading prompt tokens that the chooser expects to be cached there, where it knows.
    pub expected: Option<u32>,
    /// What its engine reports of its prompt, once it has its first token, where engines report.
    pub reported: Option<Reported>,
    leg: Option<Leg>,
    expectation: Option<Expectation>,
    booked: Booked,
}

impl Placed {
    fn plain(replica: usize, reason: Reason) -> Self {
        Self {
            replica,
            reason,
            expected: None,
            reported: None,
            leg: None,
            expectation: None,
            booked: Booked::default(),
        }
    }
}

/// A rule at work on one fleet.
pub trait Chooser {
    /// Places a call.
    ///
    /// # Errors
    /// Why no replica takes it.
    fn choose(
        &mut self,
        call: &Call,
        blocks: &[u64],
        holdings: &dyn Holdings,
        now: VirtualTime,
    ) -> Result<Placed, String>;
    /// Whether it looks at the blocks that it is given; else they may be left out.
    fn reads_blocks(&self) -> bool {
        false
    }
    /// Its first token has come.
    fn first_token(&mut self, _placed: &mut Placed, _now: VirtualTime) {}
    /// It has ended.
    fn finished(&mut self, _placed: Placed, _now: VirtualTime) {}
    /// The replica would not take it.
    fn refused(&mut self, _placed: Placed, _now: VirtualTime) {}
}

/// A rule by name.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// A policy of the product.
    Product(Policy),
    /// The hash of the key, as the study has it.
    StudyHash,
    /// The longest holder within bounds of load, as the study has it.
    StudyCacheAware,
    /// Of another project or paper.
    Rival(Rival),
}

impl Rule {
    /// All names: the product's first, the rivals' last.
    pub const NAMES: &'static [&'static str] = &[
        "round_robin",
        "random",
        "least_load",
        "power_of_two",
        "session_sticky",
        "header_hash",
        "cache_aware",
        "least_cost",
        "study_hash",
        "study_cache_aware",
        "dynamo_sum",
        "sgl_balanced",
        "bounded_hash",
        "preble",
        "lmetric",
    ];

    /// The rule of this name, with its defaults.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(Self::Product(match name {
            "round_robin" => Policy::RoundRobin,
            "random" => Policy::Random,
            "least_load" => Policy::LeastLoad,
            "power_of_two" => Policy::PowerOfTwo,
            "session_sticky" => Policy::SessionSticky(Affinity::default()),
            "header_hash" => {
                let header = http::HeaderName::from_static("x-key");
                Policy::HeaderHash { header, affinity: Affinity::default() }
            }
            "cache_aware" => Policy::CacheAware(CacheAware::default()),
            "least_cost" => Policy::LeastCost(LeastCost::default()),
            "study_hash" => return Some(Self::StudyHash),
            "study_cache_aware" => return Some(Self::StudyCacheAware),
            _ => return Rival::named(name).map(Self::Rival),
        }))
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Product(policy) => policy.as_str(),
            Self::StudyHash => "study_hash",
            Self::StudyCacheAware => "study_cache_aware",
            Self::Rival(rival) => rival.as_str(),
        }
    }

    /// Whether the product serves by it.
    #[must_use]
    pub fn is_product(&self) -> bool {
        matches!(self, Self::Product(_))
    }

    /// The rule before a fleet of `replicas` with `cache_tokens` each; `seed` draws what it draws. How fast a replica reads
    /// and how many tokens a second it writes is for rules that are told so: the product learns it.
    #[must_use]
    pub fn on(
        &self,
        replicas: usize,
        cache_tokens: u64,
        prefill: &PrefillModel,
        decode_tps: f64,
        seed: u64,
    ) -> Box<dyn Chooser> {
        match self {
            Self::Product(policy) => Box::new(Product::new(policy, replicas, cache_tokens, seed)),
            Self::StudyHash => Box::new(study_hash::StudyHash { replicas }),
            Self::StudyCacheAware => Box::new(StudyCacheAware::new(replicas)),
            Self::Rival(rival) => rival.on(replicas, cache_tokens, prefill, decode_tps, seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_rule_of_that_name() {
        for name in Rule::NAMES {
            assert_eq!(Rule::named(name).expect("a rule").as_str(), *name);
        }
        assert_eq!(Rule::named("roundrobin"), None);
    }
}
