//! One event: what its fields mean together.
use super::fields::{Fields, Tag};
use super::reader::{Read, Reader};
use super::{Adapter, Event, Reason, Removed, Skip, Stored, extra, unchained};

/// Reads one event, to its end, whether it can be used or not.
pub(super) fn read(reader: &mut Reader<'_>) -> Read<Result<Event, Skip>> {
    let fields = Fields::read(reader)?;
    let tag = fields.tag;
    Ok(build(fields).map_err(|reason| Skip { removal: tag == Some(Tag::Removed), reason }))
}

fn build(fields: Fields<'_>) -> Result<Event, Reason> {
    let tag = fields.tag.ok_or(Reason::NoEvent)?;
    match (tag, fields.fault) {
        (Tag::Unknown, _) => Err(Reason::UnknownEvent),
        (Tag::Cleared, _) => Ok(Event::Cleared),
        (_, Some(fault)) => Err(fault),
        _ if fields.hashes.is_empty() => Err(Reason::Hashes),
        (Tag::Removed, None) => {
            let (tier, group) = (fields.tier(), fields.group);
            Ok(Event::Removed(Removed { hashes: fields.hashes, tier, group }))
        }
        (Tag::Stored, None) => stored(fields).map(Event::Stored),
    }
}

fn stored(fields: Fields<'_>) -> Result<Stored, Reason> {
    let named_only = fields.tokens.is_empty();
    let wanted = fields.hashes.len().checked_mul(fields.block_size as usize);
    if !named_only && fields.block_size == 0 {
        return Err(Reason::BlockSize);
    }
    if !named_only && wanted != Some(fields.tokens.len()) {
        return Err(Reason::NotDense);
    }
    if fields.array && unchained::is(&fields.hashes, &fields.tokens, fields.medium.is_some()) {
        return Err(Reason::Unchained);
    }
    let keys = extra::read(&fields)?;
    let adapter = fields.adapter_name.map(|name| Adapter::Name(name.to_owned()));
    Ok(Stored {
        tier: fields.tier(),
        block_size: if named_only { 0 } else { fields.block_size },
        adapter: adapter.or(fields.adapter_id),
        salt: fields.salt.or(keys.salt).map(str::to_owned),
        extras: keys.extras,
        hashes: fields.hashes,
        parent: fields.parent,
        tokens: fields.tokens,
        group: fields.group,
        kind: fields.kind,
    })
}
