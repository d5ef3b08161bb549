//! The words of the configuration that stand for variants: written once, read by the table, the resolver, the
//! effective configuration and whoever needs a label.
use super::model::{
    DnsRecords, Engine, LoadPolicy, LoadUnit, LogFormat, Policy, RequestEncoding, RetryOn, Stay, StreamUsage,
};
use super::tls::{ClientCertificates, MinVersion};

macro_rules! words {
    ($type:ident: $($variant:ident = $word:literal),+) => {
        impl $type {
            /// The words that stand for the variants in the configuration.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// The word that stands for this in the configuration; also its label.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The variant that `word` stands for.
            pub fn named(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words!(Engine: Vllm = "vllm", Sglang = "sglang", Llamacpp = "llamacpp", Openai = "openai");
words!(LoadPolicy: RoundRobin = "round_robin", Random = "random", LeastLoad = "least_load", PowerOfTwo = "power_of_two");
words!(Stay: Prefer = "prefer", Balanced = "balanced");
words!(LoadUnit: Requests = "requests", Placements = "placements", QueuedSeconds = "queued_seconds");
words!(RequestEncoding: Decode = "decode", Pass = "pass");
words!(StreamUsage: Observe = "observe", Ask = "ask");
words!(DnsRecords: Auto = "auto", Address = "a", Service = "srv");
words!(RetryOn: Reset = "reset", InternalError = "500", BadGateway = "502", Unavailable = "503", GatewayTimeout = "504");
words!(ClientCertificates: Optional = "optional", Required = "required");
words!(MinVersion: Tls12 = "1.2", Tls13 = "1.3");
words!(LogFormat: Text = "text", Json = "json");

impl Policy {
    /// The name of the policy's type; also its label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastLoad => "least_load",
            Self::PowerOfTwo => "power_of_two",
            Self::SessionSticky(_) => "session_sticky",
            Self::HeaderHash { .. } => "header_hash",
            Self::CacheAware(_) => "cache_aware",
            Self::LeastCost(_) => "least_cost",
        }
    }
}

impl From<LoadPolicy> for Policy {
    fn from(load: LoadPolicy) -> Self {
        match load {
            LoadPolicy::RoundRobin => Self::RoundRobin,
            LoadPolicy::Random => Self::Random,
            LoadPolicy::LeastLoad => Self::LeastLoad,
            LoadPolicy::PowerOfTwo => Self::PowerOfTwo,
        }
    }
}
