//! JSON with long strings in it, read by serde's interface.
//!
//! serde_json looks at each byte of a string; here the next one that matters is searched for. It takes nothing that
//! serde_json refuses, and gives the same values. What it doesn't take says nothing: serde_json, asked again, then has
//! the word, and the error. Skipping a value costs no stack.
use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Lists and objects within each other that are read; serde_json takes a few more.
const MOST_DEPTH: usize = 100;
/// By this name serde_json asks for a value's text as it stands ([`RawValue`]).
const RAW: &str = "$serde_json::private::RawValue";

/// Not read, for whatever reason.
#[derive(Debug)]
pub(crate) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not read")
    }
}

impl std::error::Error for Refused {}

impl serde::de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

type Result<T> = std::result::Result<T, Refused>;

/// What is left of a text.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// No string has control characters in it, which JSON forbids.
    clean: bool,
    /// A string without its escapes.
    plain: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// A reader of any text.
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, clean: !has_control(text.as_bytes()), plain: Vec::new() }
    }

    /// A reader of JSON.
    pub(crate) fn of(raw: &'a RawValue) -> Self {
        Self { text: raw.get(), at: 0, depth: 0, clean: true, plain: Vec::new() }
    }

    /// Refuses what stands after the value.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.blank();
        if self.at == self.text.len() { Ok(()) } else { Err(Refused) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// The next byte that is not blank; it stays.
    fn next(&mut self) -> Result<u8> {
        self.blank();
        self.peek().ok_or(Refused)
    }

    fn take(&mut self, byte: u8) -> Result<()> {
        if self.next()? != byte {
            return Err(Refused);
        }
        self.at += 1;
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<()> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(Refused);
        }
        self.at += word.len();
        Ok(())
    }

    /// Goes to the next quote or backslash of a string, and says which.
    fn go_to_mark(&mut self) -> Result<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let length = memchr::memchr2(b'"', b'\\', rest).ok_or(Refused)?;
        if !self.clean && has_control(&rest[..length]) {
            return Err(Refused);
        }
        self.at += length;
        Ok(rest[length])
    }

    /// Takes a string's opening quote, and skips to behind its closing one.
    fn skip_string(&mut self) -> Result<()> {
        self.take(b'"')?;
        while self.go_to_mark()? == b'\\' {
            self.at += match self.text.as_bytes().get(self.at + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                Some(b'u') => {
                    self.unit()?;
                    6
                }
                _ => return Err(Refused),
            };
        }
        self.at += 1;
        Ok(())
    }

    /// The four digits of the escape here.
    fn unit(&self) -> Result<u32> {
        let digits = self.text.as_bytes().get(self.at + 2..self.at + 6).ok_or(Refused)?;
        digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?)).ok_or(Refused)
    }

    /// Takes a string: from the text, or, if there were escapes in it, in `plain`.
    fn string(&mut self) -> Result<Option<&'a str>> {
        self.take(b'"')?;
        let bytes = self.text.as_bytes();
        let mut start = self.at;
        if self.go_to_mark()? == b'"' {
            self.at += 1;
            return Ok(Some(&self.text[start..self.at - 1]));
        }
        self.plain.clear();
        loop {
            self.plain.extend_from_slice(&bytes[start..self.at]);
            let plain = match bytes.get(self.at + 1).ok_or(Refused)? {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'b' => 8,
                b'f' => 12,
                plain @ (b'"' | b'\\' | b'/') => *plain,
                b'u' => {
                    let wide = self.wide()?;
                    self.plain.extend_from_slice(wide.encode_utf8(&mut [0; 4]).as_bytes());
                    start = self.at;
                    if self.go_to_mark()? == b'"' {
                        break;
                    }
                    continue;
                }
                _ => return Err(Refused),
            };
            self.plain.push(plain);
            self.at += 2;
            start = self.at;
            if self.go_to_mark()? == b'"' {
                break;
            }
        }
        self.plain.extend_from_slice(&bytes[start..self.at]);
        self.at += 1;
        Ok(None)
    }

    /// Takes an escape of one unit, or two, and gives its character.
    fn wide(&mut self) -> Result<char> {
        let mut code = self.unit()?;
        self.at += 6;
        if (0xd800..0xdc00).contains(&code) {
            if !self.text.as_bytes()[self.at..].starts_with(b"\\u") {
                return Err(Refused);
            }
            let low = self.unit()?.checked_sub(0xdc00).filter(|low| *low < 0x400).ok_or(Refused)?;
            self.at += 6;
            code = 0x1_0000 + ((code - 0xd800) << 10 | low);
        }
        char::from_u32(code).ok_or(Refused)
    }

    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(Refused) }
    }

    fn skip_number(&mut self) -> Result<()> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn skip_key(&mut self) -> Result<()> {
        self.skip_string()?;
        self.take(b':')
    }

    /// Skips a value.
    fn skip(&mut self) -> Result<()> {
        // What closes the lists and objects that are open.
        let mut open = Vec::new();
        loop {
            match self.next()? {
                b'"' => self.skip_string()?,
                b'-' | b'0'..=b'9' => self.skip_number()?,
                b't' => self.word("true")?,
                b'f' => self.word("false")?,
                b'n' => self.word("null")?,
                bracket @ (b'[' | b'{') => {
                    let close = bracket + 2;
                    self.at += 1;
                    if self.next()? != close {
                        open.push(close);
                        if close == b'}' {
                            self.skip_key()?;
                        }
                        continue;
                    }
                    self.at += 1;
                }
                _ => return Err(Refused),
            }
            loop {
                let Some(&close) = open.last() else { return Ok(()) };
                let next = self.next()?;
                self.at += 1;
                match next {
                    b',' if close == b'}' => self.skip_key()?,
                    b',' => {}
                    next if next == close => {
                        open.pop();
                        continue;
                    }
                    _ => return Err(Refused),
                }
                break;
            }
        }
    }

    fn number<V: Visitor<'a>>(&mut self, visitor: V) -> Result<V::Value> {
        let start = self.at;
        self.skip_number()?;
        let mut json = serde_json::Deserializer::from_str(&self.text[start..self.at]);
        json.deserialize_any(visitor).map_err(|_| Refused)
    }

    /// Takes the bracket that opens a list or an object, and after `with` the one that closes it.
    fn within<T>(&mut self, close: u8, with: impl FnOnce(Inside<'_, 'a>) -> Result<T>) -> Result<T> {
        if self.depth == MOST_DEPTH {
            return Err(Refused);
        }
        self.at += 1;
        self.depth += 1;
        let value = with(Inside { reader: self, close, first: true })?;
        self.depth -= 1;
        self.take(close)?;
        Ok(value)
    }
}

/// Whether control characters stand in a text: blanks between values are some.
fn has_control(text: &[u8]) -> bool {
    text.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < b' '
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.next()? {
            b'"' => match self.string()? {
                Some(text) => visitor.visit_borrowed_str(text),
                // It was a text, piece by piece; to say so again costs less than to build a text.
                None => visitor.visit_str(simdutf8::basic::from_utf8(&self.plain).map_err(|_| Refused)?),
            },
            b'{' => self.within(b'}', |inside| visitor.visit_map(inside)),
            b'[' => self.within(b']', |inside| visitor.visit_seq(inside)),
            b't' => {
                self.word("true")?;
                visitor.visit_bool(true)
            }
            b'f' => {
                self.word("false")?;
                visitor.visit_bool(false)
            }
            b'n' => {
                self.word("null")?;
                visitor.visit_unit()
            }
            b'-' | b'0'..=b'9' => self.number(visitor),
            _ => Err(Refused),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.next()? == b'{' { self.deserialize_any(visitor) } else { Err(Refused) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.next()? == b'[' { self.deserialize_any(visitor) } else { Err(Refused) }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.next()? == b'"' { self.deserialize_any(visitor) } else { Err(Refused) }
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.next()? == b'n' {
            self.word("null")?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value> {
        if name != RAW {
            return visitor.visit_newtype_struct(self);
        }
        self.blank();
        let start = self.at;
        self.skip()?;
        visitor.visit_map(Raw(Some(&self.text[start..self.at])))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.skip()?;
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char string bytes byte_buf unit unit_struct tuple
        tuple_struct struct enum
    }
}

/// Within a list or an object.
struct Inside<'r, 'a> {
    reader: &'r mut Reader<'a>,
    close: u8,
    first: bool,
}

impl Inside<'_, '_> {
    /// Whether another item follows; the comma before it is taken.
    fn more(&mut self) -> Result<bool> {
        if self.reader.next()? == self.close {
            return Ok(false);
        }
        if !std::mem::replace(&mut self.first, false) {
            self.reader.take(b',')?;
        }
        Ok(true)
    }
}

impl<'de> SeqAccess<'de> for Inside<'_, 'de> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        if self.more()? { seed.deserialize(&mut *self.reader).map(Some) } else { Ok(None) }
    }
}

impl<'de> MapAccess<'de> for Inside<'_, 'de> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        if !self.more()? {
            return Ok(None);
        }
        if self.reader.next()? != b'"' {
            return Err(Refused);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        self.reader.take(b':')?;
        seed.deserialize(&mut *self.reader)
    }
}

/// A value's text, in the form in which [`RawValue`] takes it.
struct Raw<'a>(Option<&'a str>);

impl<'de> MapAccess<'de> for Raw<'de> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        if self.0.is_none() {
            return Ok(None);
        }
        seed.deserialize(BorrowedStrDeserializer::new(RAW)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        seed.deserialize(BorrowedStrDeserializer::new(self.0.take().ok_or(Refused)?))
    }
}

#[cfg(test)]
#[path = "tests/reader.rs"]
mod tests;
