//! A name of the DNS: every address of it is a replica.
//!
//! The search list is walked here and not by the resolver, which would take the last name's "no such name" for the
//! answer when the server was out of order for the right one; a fleet must not be emptied by that. Addresses of a
//! family, or of an SRV target, that could not be asked for stay as they were; what was answered counts as it was
//! answered.
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::read_system_conf;

use super::List;
use crate::config::{Dns, PoolEvents, Replica, ReplicaUrl};

/// Time to live below which a name is not asked for again.
const SOONEST: Duration = Duration::from_secs(1);
/// How long one try of one server may take.
const TRY: Duration = Duration::from_secs(2);

/// The names to ask for, and what was answered last.
pub(super) struct Names {
    dns: Dns,
    kv_events: PoolEvents,
    asking: Option<Asking>,
    known: BTreeMap<(Name, RecordType), BTreeSet<IpAddr>>,
}

struct Asking {
    resolver: TokioResolver,
    /// What the name may stand for, whole.
    candidates: Vec<Name>,
}

/// Records, and until when they hold. No records: there are none.
struct Answer {
    records: Vec<RData>,
    until: Option<Instant>,
}

impl Names {
    pub fn new(dns: Dns, kv_events: PoolEvents) -> Self {
        Self { dns, kv_events, asking: None, known: BTreeMap::new() }
    }

    /// One look at everything.
    pub async fn look(&mut self) -> Result<List, String> {
        let asking = match self.asking.take() {
            Some(asking) => asking,
            None => asking(&self.dns)?,
        };
        let mut round = Round { resolver: &asking.resolver, until: None, before: &self.known, known: BTreeMap::new() };
        let result = if self.dns.service() {
            self.services(&mut round, &asking.candidates).await
        } else {
            round.addresses(&asking.candidates).await.map(|addresses| self.at(addresses))
        };
        let (known, until) = (round.known, round.until);
        self.asking = Some(asking);
        let mut replicas = result?;
        self.known = known;
        replicas.sort_by(|a, b| a.id.cmp(&b.id));
        replicas.dedup_by(|a, b| a.id == b.id);
        let holds = until.map(|until| until.saturating_duration_since(Instant::now()).max(SOONEST));
        Ok(List { replicas, holds })
    }

    fn at(&self, addresses: BTreeSet<IpAddr>) -> Vec<Replica> {
        let port = self.dns.port.unwrap_or(80);
        addresses.into_iter().map(|ip| self.replica(ip, port, None, 1)).collect()
    }

    async fn services(&self, round: &mut Round<'_>, candidates: &[Name]) -> Result<Vec<Replica>, String> {
        let mut services: Vec<_> = round
            .first(candidates, RecordType::SRV)
            .await?
            .into_iter()
            .filter_map(|data| if let RData::SRV(service) = data { Some(service) } else { None })
            .collect();
        // RFC 2782: the lowest number is the best; a target "." means that the service is not there.
        let best = services.iter().map(|service| service.priority).min();
        services.retain(|service| Some(service.priority) == best && !service.target.is_root());
        let mut replicas = Vec::new();
        let (count, mut failed) = (services.len(), Vec::new());
        for service in services {
            match round.addresses(std::slice::from_ref(&service.target)).await {
                Ok(addresses) => {
                    let port = self.dns.port.unwrap_or(service.port);
                    let weight = u32::from(service.weight).clamp(1, 1000);
                    let target = service.target.to_ascii();
                    // A target with one address is one engine, whose name outlives its address.
                    let id = (addresses.len() == 1).then(|| format!("{}:{port}", target.trim_end_matches('.')));
                    replicas.extend(addresses.into_iter().map(|ip| self.replica(ip, port, id.as_deref(), weight)));
                }
                Err(problem) => failed.push(problem),
            }
        }
        match failed.pop() {
            Some(problem) if failed.len() + 1 == count => Err(problem),
            _ => Ok(replicas),
        }
    }

    fn replica(&self, ip: IpAddr, port: u16, id: Option<&str>, weight: u32) -> Replica {
        let authority = match (ip, port) {
            (IpAddr::V6(ip), 80) => format!("[{ip}]"),
            (IpAddr::V4(ip), 80) => ip.to_string(),
            (ip, port) => SocketAddr::new(ip, port).to_string(),
        };
        // Plain text: a certificate is for a name, and what is found here are addresses.
        let url = ReplicaUrl {
            tls: false,
            host: ip.to_string().into(),
            port,
            authority: authority.into(),
            base_path: self.dns.base_path.clone(),
        };
        Replica {
            kv_events: self.kv_events.of(&url),
            rank: None,
            id: id.map_or_else(|| url.default_id(), str::to_owned).into(),
            url,
            weight,
            credential: self.dns.credential.clone(),
            max_in_flight: self.dns.max_in_flight,
            cache_tokens: self.dns.cache_tokens,
            incarnation: 0,
            tls: None,
        }
    }
}

/// One look: what it was told so far.
struct Round<'a> {
    resolver: &'a TokioResolver,
    until: Option<Instant>,
    before: &'a BTreeMap<(Name, RecordType), BTreeSet<IpAddr>>,
    known: BTreeMap<(Name, RecordType), BTreeSet<IpAddr>>,
}

impl Round<'_> {
    /// All addresses of the first candidate that has any.
    async fn addresses(&mut self, candidates: &[Name]) -> Result<BTreeSet<IpAddr>, String> {
        let Some(name) = candidates.first() else { return Ok(BTreeSet::new()) };
        let mut all = BTreeSet::new();
        let mut failed = None;
        for family in [RecordType::A, RecordType::AAAA] {
            let key = (name.clone(), family);
            let addresses = match self.first(candidates, family).await {
                Ok(records) => records.iter().filter_map(RData::ip_addr).map(|ip| ip.to_canonical()).collect(),
                Err(problem) => {
                    let before = self.before.get(&key).cloned().unwrap_or_default();
                    failed = Some(problem);
                    before
                }
            };
            all.extend(addresses.iter().copied());
            self.known.insert(key, addresses);
        }
        // What was kept from before is better than nothing, but nothing is not known to be so.
        match failed {
            Some(problem) if all.is_empty() => Err(problem),
            _ => Ok(all),
        }
    }

    /// The records of the first candidate that has any. Fails when one before it could not be asked for.
    async fn first(&mut self, candidates: &[Name], kind: RecordType) -> Result<Vec<RData>, String> {
        for name in candidates {
            let Answer { records, until } = self.ask(name, kind).await?;
            self.until = self.until.into_iter().chain(until).min();
            if !records.is_empty() {
                return Ok(records);
            }
        }
        Ok(Vec::new())
    }

    async fn ask(&self, name: &Name, kind: RecordType) -> Result<Answer, String> {
        match self.resolver.lookup(name.clone(), kind).await {
            Ok(lookup) => {
                let of_kind = |record: &&Record| record.record_type() == kind;
                let records = lookup.answers().iter().filter(of_kind).map(|record| record.data.clone()).collect();
                Ok(Answer { records, until: Some(lookup.valid_until()) })
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(NoRecords {
                response_code: ResponseCode::NoError | ResponseCode::NXDomain,
                negative_ttl,
                ..
            }))) => {
                let ttl = negative_ttl.map(|seconds| Duration::from_secs(u64::from(seconds)));
                Ok(Answer { records: Vec::new(), until: ttl.map(|ttl| Instant::now() + ttl) })
            }
            Err(error) => Err(format!("{kind} records of {name}: {error}")),
        }
    }
}

fn asking(dns: &Dns) -> Result<Asking, String> {
    let name = Name::from_str(&dns.name).map_err(|error| format!("{}: {error}", dns.name))?;
    let (config, mut options) = match dns.nameserver {
        None => read_system_conf().map_err(|error| format!("the system's DNS servers are not known: {error}"))?,
        Some(server) => {
            let at = |mut connection: ConnectionConfig| {
                connection.port = server.port();
                connection
            };
            let connections = vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())];
            let server = NameServerConfig::new(server.ip(), true, connections);
            (ResolverConfig::from_parts(None, Vec::new(), vec![server]), ResolverOpts::default())
        }
    };
    // Each look is to see what is there now; how long that holds is for the caller.
    options.cache_size = 0;
    options.timeout = options.timeout.min(TRY);
    let candidates = candidates(name, config.search(), options.ndots);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    let resolver = builder.build().map_err(|error| error.to_string())?;
    Ok(Asking { resolver, candidates })
}

/// What `name` may stand for (resolv.conf(5): `search`, `ndots`), whole names, best first.
fn candidates(mut name: Name, search: &[Name], ndots: usize) -> Vec<Name> {
    if name.is_fqdn() {
        return vec![name];
    }
    let dots = usize::from(name.num_labels()).saturating_sub(1);
    let mut list: Vec<Name> = search.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
    name.set_fqdn(true);
    if dots >= ndots {
        list.insert(0, name);
    } else {
        list.push(name);
    }
    list.iter_mut().for_each(|name| name.set_fqdn(true));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_list_is_walked_as_resolv_conf_says() {
        let search = [Name::from_str("ns.svc.cluster.local").unwrap(), Name::from_str("cluster.local.").unwrap()];
        let names = |text: &str, ndots| {
            let names = candidates(Name::from_str(text).unwrap(), &search, ndots);
            names.iter().map(Name::to_ascii).collect::<Vec<_>>()
        };
        assert_eq!(names("a.b.", 5), ["a.b."]);
        assert_eq!(names("engines", 1), ["engines.ns.svc.cluster.local.", "engines.cluster.local.", "engines."]);
        assert_eq!(names("a.b", 1), ["a.b.", "a.b.ns.svc.cluster.local.", "a.b.cluster.local."]);
    }
}
