//! Header and framing hygiene, in both directions.
//!
//! A deny-list: hop-by-hop fields (RFC 9110, section 7.6.1), those named in `Connection`, and our own go; everything
//! else passes, duplicates included. Framing is never copied: it is written anew from the body that is there.
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header, request};

use ipnet::IpNet;

use super::http2;
use super::listener::Client;
use super::problem::Problem;
use crate::api::{Cause, Phase};
use crate::config::Limits;
use crate::fleet::Request;

/// Named once: a constant would be made anew for each comparison.
static HOP_BY_HOP: [HeaderName; 11] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::PROXY_AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
];

/// The id a request goes by.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// Which of an engine's data-parallel ranks is to compute it (vLLM from 0.12, SGLang).
pub const X_DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Which attempt at one request this is; only on those after the first.
pub const X_WARMROUTE_ATTEMPT: HeaderName = HeaderName::from_static("x-warmroute-attempt");
/// How many attempts an answer took; only when it took more than one.
pub const X_WARMROUTE_ATTEMPTS: HeaderName = HeaderName::from_static("x-warmroute-attempts");
const X_WARMROUTE_REPLICA: HeaderName = HeaderName::from_static("x-warmroute-replica");
const X_WARMROUTE_REASON: HeaderName = HeaderName::from_static("x-warmroute-reason");
const X_WARMROUTE_MATCHED: HeaderName = HeaderName::from_static("x-warmroute-matched-tokens");
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Checks what must hold before anything else is looked at. What HTTP itself asks of a head, its reader has seen to.
///
/// # Errors
/// The problem to answer with.
pub fn check(head: &request::Parts, limits: &Limits) -> Result<(), Problem> {
    let problem = |cause, message: String| Err(Problem::new(cause, Phase::Head, message));
    if head.method == Method::CONNECT || head.method == Method::TRACE {
        return problem(Cause::MethodNotAllowed, format!("{} is not served here", head.method));
    }
    if head.version == http::Version::HTTP_2 {
        http2::check(head, limits)?;
    }
    let length = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    if length > limits.uri {
        return problem(
            Cause::UriTooLong,
            format!("the request target has {length} bytes; limits.uri allows {}", limits.uri),
        );
    }
    let mut expectations = head.headers.get_all(header::EXPECT).iter();
    if expectations.any(|expect| !expect.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        return problem(Cause::ExpectationFailed, "only Expect: 100-continue can be met".into());
    }
    Ok(())
}

/// The client's request id if it is 1 to 128 of a safe alphabet, else a new one.
pub fn request_id(headers: &HeaderMap) -> HeaderValue {
    let safe = |id: &&HeaderValue| {
        (1..=128).contains(&id.len())
            && id
                .as_bytes()
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/'))
    };
    // A copy: it outlives the head, of which the client's is a part.
    let known = headers.get(X_REQUEST_ID).filter(safe).and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok());
    known.unwrap_or_else(new_request_id)
}

/// 32 hexadecimal digits.
fn new_request_id() -> HeaderValue {
    let random = fastrand::u128(..);
    let digits: [u8; 32] = std::array::from_fn(|at| b"0123456789abcdef"[(random >> (4 * at) & 15) as usize]);
    HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static("-"))
}

/// Fields of a head that is written anew, several of one name behind each other.
pub type Fields = Vec<(HeaderName, HeaderValue)>;

/// What goes from any head that passes: hop-by-hop fields, and names of our own, which are ours alone in both directions.
fn goes(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name) || name.as_str().starts_with("x-warmroute-")
}

/// So do those that `Connection` names.
fn named(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::CONNECTION).iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        // A Connection header that names Host asks us to forge a request; that one stays.
        .filter(|name| name != header::HOST)
        .collect()
}

/// Which attempt a hop before says this is; 0 when it says nothing that can be understood.
pub fn attempt(headers: &HeaderMap) -> u32 {
    let value = headers.get(X_WARMROUTE_ATTEMPT).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.parse().ok()).filter(|attempt| *attempt <= 1_000).unwrap_or(0)
}

/// The headers that go to a replica, but for `Host` and the credential, which depend on it. A target that is a whole
/// URL has an `authority`, which stands above Host (RFC 9112, section 3.2.2).
pub fn to_replica(
    headers: HeaderMap,
    authority: Option<&Authority>,
    client: &Client,
    trusted: &[IpNet],
    request_id: &HeaderValue,
) -> Fields {
    // A trusted peer's word on where a request came from is kept and continued, any other's replaced.
    let ip = client.address.ip();
    let trusted = trusted.iter().any(|network| network.contains(&ip));
    let way = if trusted { way(&headers, client) } else { client.ip.clone() };
    let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    let host = host.or_else(|| headers.get(header::HOST).cloned());
    let told = |name| trusted && headers.contains_key(name);
    let (told_host, told_scheme) = (told(&X_FORWARDED_HOST), told(&X_FORWARDED_PROTO));
    let named = named(&headers);

    let mut fields = Fields::with_capacity(headers.len() + 4);
    let mut name = header::HOST;
    for (next, value) in headers {
        // Further values of one name come without it.
        name = next.unwrap_or(name);
        let replaced = match &name {
            name if *name == header::HOST || *name == X_FORWARDED_FOR || *name == X_REQUEST_ID => true,
            name if *name == X_FORWARDED_HOST || *name == X_FORWARDED_PROTO => !trusted,
            name => *name == header::EXPECT || *name == header::FORWARDED || goes(name),
        };
        if !replaced && !named.contains(&name) {
            fields.push((name.clone(), value));
        }
    }
    fields.push((X_FORWARDED_FOR, way));
    if let (Some(host), false) = (host, told_host && !named.contains(&X_FORWARDED_HOST)) {
        fields.push((X_FORWARDED_HOST, host));
    }
    if !told_scheme || named.contains(&X_FORWARDED_PROTO) {
        fields.push((X_FORWARDED_PROTO, HeaderValue::from_static(if client.tls { "https" } else { "http" })));
    }
    fields.push((X_REQUEST_ID, request_id.clone()));
    fields
}

/// Where a trusted peer says that a request came from, and that peer.
fn way(headers: &HeaderMap, client: &Client) -> HeaderValue {
    let said = headers.get_all(X_FORWARDED_FOR).iter().chain([&client.ip]).map(HeaderValue::as_bytes);
    HeaderValue::from_bytes(&said.collect::<Vec<_>>().join(b", ".as_slice())).unwrap_or_else(|_| client.ip.clone())
}

/// Puts the headers for one replica into its request: its credential replaces the client's, never joins it, and so does
/// its rank.
pub fn for_replica(request: &mut Request, fields: &Fields, authorization: Option<&HeaderValue>, ranked: bool) {
    for (name, value) in fields {
        let replaced = (authorization.is_some() && (*name == header::AUTHORIZATION || *name == X_API_KEY))
            || (ranked && *name == X_DATA_PARALLEL_RANK);
        if !replaced {
            request.field(name, value);
        }
    }
    if let Some(authorization) = authorization {
        request.field(&header::AUTHORIZATION, authorization);
    }
}

/// Cleans an engine's response headers for the client.
pub fn to_client(headers: &mut HeaderMap, request_id: &HeaderValue) {
    let mut going = named(headers);
    going.extend(headers.keys().filter(|name| goes(name)).cloned());
    for name in going {
        headers.remove(name);
    }
    headers.entry(X_REQUEST_ID).or_insert_with(|| request_id.clone());
}

/// Says which replica an answer is of, why it was chosen, and what of the prompt it was expected to hold.
pub fn expose(headers: &mut HeaderMap, replica: &str, reason: &'static str, matched: Option<u32>) {
    if let Ok(replica) = HeaderValue::from_str(replica) {
        headers.insert(X_WARMROUTE_REPLICA, replica);
    }
    headers.insert(X_WARMROUTE_REASON, HeaderValue::from_static(reason));
    if let Some(matched) = matched {
        headers.insert(X_WARMROUTE_MATCHED, matched.into());
    }
}

/// Whether a response is a stream of server-sent events, parameters aside.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes) else { return false };
    let media = value.split(|byte| *byte == b';').next().unwrap_or(value);
    media.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
}

#[cfg(test)]
mod tests {
    use http::uri::PathAndQuery;

    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn map(fields: Fields) -> HeaderMap {
        let mut map = HeaderMap::new();
        fields.into_iter().for_each(|(name, value)| _ = map.append(name, value));
        map
    }

    #[test]
    fn hop_by_hop_goes_and_the_rest_passes() {
        let sent = headers(&[
            ("host", "router"),
            ("connection", "x-secret, Keep-Alive, host"),
            ("x-secret", "1"),
            ("keep-alive", "1"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("x-warmroute-replica", "10.0.0.1"),
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("x-many", "1"),
            ("x-many", "2"),
            ("x_under", "1"),
        ]);
        let client = Client::new("9.9.9.9:1".parse().unwrap(), false);
        let out = map(to_replica(sent, None, &client, &[], &HeaderValue::from_static("id")));
        let mut names: Vec<&str> = out.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected =
            ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-many", "x-request-id", "x_under"];
        assert_eq!(names, expected);
        assert_eq!(out["x-forwarded-for"], "9.9.9.9");
        assert_eq!(out.get_all("x-many").iter().count(), 2);
    }

    #[test]
    fn only_a_trusted_peer_is_believed() {
        let sent = headers(&[
            ("host", "router"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-for", "10.0.0.9, 10.0.0.8"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "public.example"),
        ]);
        let trusted = ["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let seen = |address: &str, tls, sent: HeaderMap| {
            let client = Client::new(address.parse().unwrap(), tls);
            let out = map(to_replica(sent, None, &client, &trusted, &HeaderValue::from_static("id")));
            ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"].map(|name| {
                let all: Vec<_> = out.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
                all.join(" | ")
            })
        };
        let believed =
            |ip: &str| [format!("1.2.3.4, 10.0.0.9, 10.0.0.8, {ip}"), "https".into(), "public.example".into()];
        assert_eq!(seen("10.1.1.1:5", false, sent.clone()), believed("10.1.1.1"));
        assert_eq!(seen("[2001:db8::1]:5", false, sent.clone()), believed("2001:db8::1"));
        assert_eq!(seen("11.1.1.1:5", false, sent.clone()), ["11.1.1.1", "http", "router"]);
        assert_eq!(seen("[::1]:5", true, sent), ["::1", "https", "router"]);
        let bare = headers(&[("host", "router")]);
        assert_eq!(seen("10.1.1.1:5", true, bare), ["10.1.1.1", "https", "router"]);
    }

    #[test]
    fn a_replicas_credential_replaces_the_clients() {
        let sent = headers(&[("authorization", "Bearer client"), ("x-api-key", "client")]);
        let fields = |authorization: Option<&'static str>| {
            let target = PathAndQuery::from_static("/");
            let mut request = Request::new(Method::GET, &target, &HeaderValue::from_static("replica:1"));
            let sent = sent.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            for_replica(&mut request, &sent, authorization.map(HeaderValue::from_static).as_ref(), false);
            request.head()
        };
        let kept = fields(None);
        assert!(kept.contains("authorization: Bearer client\r\n") && kept.contains("x-api-key: client\r\n"), "{kept}");
        let replaced = fields(Some("Bearer replica"));
        assert_eq!(replaced, "GET / HTTP/1.1\r\nhost: replica:1\r\nauthorization: Bearer replica\r\n");
    }

    #[test]
    fn unsafe_request_ids_are_replaced() {
        assert_eq!(request_id(&headers(&[("x-request-id", "req-1_a.b:c/d")])), "req-1_a.b:c/d");
        for bad in ["", "a b", "a\"b", &"x".repeat(129), "a;b"] {
            let id = request_id(&headers(&[("x-request-id", bad)]));
            assert_eq!(id.len(), 32, "{bad:?} → {id:?}");
        }
    }

    #[test]
    fn a_media_type_is_compared_without_its_parameters() {
        assert!(is_event_stream(&headers(&[("content-type", "Text/Event-Stream; charset=utf-8")])));
        assert!(!is_event_stream(&headers(&[("content-type", "application/json")])));
    }
}
