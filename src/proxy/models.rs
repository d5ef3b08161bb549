//! The list of models: the union over the replicas, limited to names that a client can ask for.
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, header};
use serde_json::{Map, Value, json};

use crate::config::Models;
use crate::fleet::{Fleet, Replica, Request};
use crate::routing::State;

/// Longest a replica may take to tell its models.
const PATIENCE: Duration = Duration::from_secs(3);
/// Largest list that is read.
const LARGEST: usize = 1 << 20;

/// The entries of every pool: pools and replicas in the configuration's order, each name once, fields as the engine
/// gave them. A pool's own names are always there, whether or not an engine can be asked. A replica without a credential
/// of its own is asked with the client's `authorization`.
pub async fn list(fleet: &Fleet, authorization: Option<&HeaderValue>) -> Vec<Value> {
    let asked: Vec<&Arc<Replica>> = fleet.replicas().iter().filter(|replica| replica.state() != State::Down).collect();
    let answers =
        join_all(asked.iter().map(|replica| tokio::time::timeout(PATIENCE, ask(replica, authorization)))).await;
    let told: Vec<(&str, Vec<Value>)> = asked
        .iter()
        .zip(answers)
        .map(|(replica, answer)| (&**replica.id(), answer.ok().flatten().unwrap_or_default()))
        .collect();

    let mut union: Vec<Value> = Vec::new();
    for pool in fleet.pools() {
        let theirs = || {
            pool.replicas()
                .iter()
                .filter_map(|replica| told.iter().find(|(id, _)| id == &&**replica.id()))
                .flat_map(|(_, entries)| entries)
        };
        match &pool.settings().models {
            Models::Any => theirs().for_each(|entry| add(&mut union, entry.clone())),
            Models::Named { model, aliases } => {
                let own = theirs().find(|entry| name(entry) == Some(&**model)).cloned();
                let own = own.unwrap_or_else(|| unknown(model));
                add(&mut union, own.clone());
                for alias in aliases {
                    let mut entry = own.clone();
                    if let Some(entry) = entry.as_object_mut() {
                        entry.insert("id".into(), json!(&**alias));
                    }
                    add(&mut union, entry);
                }
                for adapter in &pool.settings().adapters {
                    let told = theirs().find(|entry| name(entry) == Some(&**adapter)).cloned();
                    add(&mut union, told.unwrap_or_else(|| unknown(adapter)));
                }
            }
        }
    }
    union
}

/// The entry of a model that no engine tells of.
fn unknown(model: &str) -> Value {
    json!({"id": model, "object": "model", "created": 0, "owned_by": "warmroute"})
}

/// The list as OpenAI's API gives it.
pub fn as_list(entries: Vec<Value>) -> Value {
    let mut list = Map::new();
    list.insert("object".into(), json!("list"));
    list.insert("data".into(), Value::Array(entries));
    Value::Object(list)
}

/// An entry's name.
pub fn name(entry: &Value) -> Option<&str> {
    entry.get("id")?.as_str()
}

fn add(union: &mut Vec<Value>, entry: Value) {
    if name(&entry).is_some() && !union.iter().any(|known| name(known) == name(&entry)) {
        union.push(entry);
    }
}

async fn ask(replica: &Replica, authorization: Option<&HeaderValue>) -> Option<Vec<Value>> {
    let target = PathAndQuery::try_from(format!("{}/v1/models", replica.url().base_path)).ok()?;
    let mut request = Request::new(Method::GET, &target, replica.authority());
    if let Some(authorization) = replica.authorization().as_ref().or(authorization) {
        request.field(&header::AUTHORIZATION, authorization);
    }
    let response = replica.connections().ask(request).await.ok()?;
    let success = response.status().is_success();
    let mut body = response.into_body();
    let read = body.whole(LARGEST).await.ok()?;
    replica.connections().give_back(body.into_connection());
    let mut list: Value = serde_json::from_slice(&read).ok().filter(|_| success)?;
    match list.get_mut("data")?.take() {
        Value::Array(entries) => Some(entries),
        _ => None,
    }
}
