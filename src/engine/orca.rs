//! Load in a response header: `endpoint-load-metrics`, of Envoy's Open Request Cost Aggregation. vLLM sends it to who asks
//! with `endpoint-load-metrics-format: TEXT` or `JSON`.
use http::HeaderMap;
use serde::Deserialize;

/// The header.
pub const HEADER: &str = "endpoint-load-metrics";

/// What it says; what it does not is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Orca {
    /// The share of the KV cache that requests use, 0 to 1.
    #[serde(rename = "kv_cache_usage_perc")]
    pub cache_use: Option<f64>,
    /// Requests that wait.
    #[serde(rename = "num_requests_waiting")]
    waiting: Option<f64>,
}

impl Orca {
    /// The header of an answer, if it is there and says any of it.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(HEADER)?.to_str().ok()?.trim();
        let orca = match text.split_once(' ') {
            Some(("JSON", json)) => of_json(json)?,
            Some(("TEXT", pairs)) => of_pairs(pairs),
            _ => of_pairs(text),
        };
        let orca = Self { cache_use: orca.cache_use.filter(|share| (0.0..=1.0).contains(share)), ..orca };
        (orca != Self::default()).then_some(orca)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> Option<u32> {
        self.waiting.filter(|waiting| waiting.is_finite() && *waiting >= 0.0).map(|waiting| waiting as u32)
    }
}

fn of_json(json: &str) -> Option<Orca> {
    #[derive(Deserialize)]
    struct Report {
        named_metrics: Orca,
    }
    serde_json::from_str(json).ok().map(|report: Report| report.named_metrics)
}

fn of_pairs(pairs: &str) -> Orca {
    let mut orca = Orca::default();
    for (name, value) in pairs.split(',').filter_map(|pair| pair.split_once('=')) {
        let value = value.trim().parse().ok();
        match name.trim().trim_start_matches("named_metrics.") {
            "kv_cache_usage_perc" => orca.cache_use = value,
            "num_requests_waiting" => orca.waiting = value,
            _ => {}
        }
    }
    orca
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Option<(Option<u32>, Option<f64>)> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, value.parse().unwrap());
        Orca::of(&headers).map(|orca| (orca.waiting(), orca.cache_use))
    }

    #[test]
    fn both_forms_say_the_same() {
        let said = Some((Some(3), Some(0.25)));
        for value in [
            "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3",
            "TEXT named_metrics.kv_cache_usage_perc=0.25,named_metrics.num_requests_waiting=3.0,cpu_utilization=0.3",
            "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": 0.25, \"num_requests_waiting\": 3}, \"cpu\": 1}",
        ] {
            assert_eq!(of(value), said, "{value}");
        }
    }

    #[test]
    fn what_it_does_not_say_is_unknown() {
        assert_eq!(of("TEXT named_metrics.num_requests_waiting=0"), Some((Some(0), None)));
        for value in ["", "TEXT", "JSON", "JSON {", "JSON []", "BIN x", "TEXT a=b", "TEXT kv_cache_usage_perc=40"] {
            assert_eq!(of(value), None, "{value}");
        }
        assert_eq!(of("TEXT num_requests_waiting=-1"), Some((None, None)), "no number of requests");
        assert_eq!(Orca::of(&HeaderMap::new()), None);
    }
}
