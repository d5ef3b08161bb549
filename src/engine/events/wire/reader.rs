//! MessagePack, read from a slice that nobody has checked.
//!
//! A length prefix is a claim: nothing is allocated for more elements than bytes are left, and nothing is entered deeper
//! than [`DEPTH`]. What can't be read is an error; the caller steps over it with [`Reader::skip`] if it knows where it
//! began.
use rmp::Marker;

/// How deep values may be nested: a batch holds events, an event lists of keys, a key is a pair; the rest is slack.
const DEPTH: usize = 16;

/// Bytes that are not the MessagePack that was asked for: cut short, too deep, or of another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unreadable;

pub(super) type Read<T> = Result<T, Unreadable>;

/// One value, as far as an event has such: containers only say how many values follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    /// An integer that fits `u64`.
    Unsigned(u64),
    /// A negative one.
    Negative(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Array(usize),
    /// Pairs of key and value.
    Map(usize),
    Extension,
}

/// A place in a payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Room for `claimed` elements, of which each takes a byte at least.
    pub fn room(&self, claimed: usize) -> usize {
        claimed.min(self.rest.len())
    }

    /// The next value; of a container its head.
    pub fn value(&mut self) -> Read<Value<'a>> {
        let marker = Marker::from_u8(self.take::<1>()?[0]);
        Ok(match marker {
            Marker::Null => Value::Nil,
            Marker::True | Marker::False => Value::Bool,
            Marker::FixPos(number) => Value::Unsigned(number.into()),
            Marker::U8 => Value::Unsigned(u8::from_be_bytes(self.take()?).into()),
            Marker::U16 => Value::Unsigned(u16::from_be_bytes(self.take()?).into()),
            Marker::U32 => Value::Unsigned(u32::from_be_bytes(self.take()?).into()),
            Marker::U64 => Value::Unsigned(u64::from_be_bytes(self.take()?)),
            Marker::FixNeg(number) => signed(number.into()),
            Marker::I8 => signed(i8::from_be_bytes(self.take()?).into()),
            Marker::I16 => signed(i16::from_be_bytes(self.take()?).into()),
            Marker::I32 => signed(i32::from_be_bytes(self.take()?).into()),
            Marker::I64 => signed(i64::from_be_bytes(self.take()?)),
            Marker::F32 => Value::Float(f32::from_be_bytes(self.take()?).into()),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.take()?)),
            Marker::FixStr(length) => self.text(length.into())?,
            Marker::Str8 => self.length8().and_then(|length| self.text(length))?,
            Marker::Str16 => self.length16().and_then(|length| self.text(length))?,
            Marker::Str32 => self.length32().and_then(|length| self.text(length))?,
            Marker::Bin8 => Value::Bytes(self.length8().and_then(|length| self.bytes(length))?),
            Marker::Bin16 => Value::Bytes(self.length16().and_then(|length| self.bytes(length))?),
            Marker::Bin32 => Value::Bytes(self.length32().and_then(|length| self.bytes(length))?),
            Marker::FixArray(length) => Value::Array(length.into()),
            Marker::Array16 => Value::Array(self.length16()?),
            Marker::Array32 => Value::Array(self.length32()?),
            Marker::FixMap(length) => Value::Map(length.into()),
            Marker::Map16 => Value::Map(self.length16()?),
            Marker::Map32 => Value::Map(self.length32()?),
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => self.length8().and_then(|length| self.extension(length))?,
            Marker::Ext16 => self.length16().and_then(|length| self.extension(length))?,
            Marker::Ext32 => self.length32().and_then(|length| self.extension(length))?,
            Marker::Reserved => return Err(Unreadable),
        })
    }

    /// Steps over the next value, with all that it holds.
    pub fn skip(&mut self) -> Read<()> {
        self.skip_within(DEPTH)
    }

    fn skip_within(&mut self, depth: usize) -> Read<()> {
        let held = match self.value()? {
            Value::Array(length) => length,
            Value::Map(pairs) => pairs.checked_mul(2).ok_or(Unreadable)?,
            _ => return Ok(()),
        };
        let depth = depth.checked_sub(1).ok_or(Unreadable)?;
        // Ends at the end of the bytes at the latest, whatever the head claims.
        (0..held).try_for_each(|_| self.skip_within(depth))
    }

    /// Steps over what a value whose head was read still holds.
    pub fn leave(&mut self, head: Value<'_>) -> Read<()> {
        let held = match head {
            Value::Array(length) => length,
            Value::Map(pairs) => pairs.checked_mul(2).ok_or(Unreadable)?,
            _ => 0,
        };
        (0..held).try_for_each(|_| self.skip())
    }

    fn bytes(&mut self, length: usize) -> Read<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Unreadable)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn take<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(Unreadable)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn text(&mut self, length: usize) -> Read<Value<'a>> {
        // Not UTF-8: as good as bytes, so that what follows stays readable.
        let bytes = self.bytes(length)?;
        Ok(std::str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Text))
    }

    fn extension(&mut self, length: usize) -> Read<Value<'a>> {
        self.bytes(length.checked_add(1).ok_or(Unreadable)?)?;
        Ok(Value::Extension)
    }

    fn length8(&mut self) -> Read<usize> {
        Ok(usize::from(u8::from_be_bytes(self.take()?)))
    }

    fn length16(&mut self) -> Read<usize> {
        Ok(usize::from(u16::from_be_bytes(self.take()?)))
    }

    fn length32(&mut self) -> Read<usize> {
        usize::try_from(u32::from_be_bytes(self.take()?)).map_err(|_| Unreadable)
    }
}

/// A signed form may hold a number that isn't negative.
fn signed<'a>(number: i64) -> Value<'a> {
    u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned)
}
