//! YAML text → a tree in which every value and key knows its line and column.
//!
//! One document; nesting and the size after aliases are bounded. Nothing is interpreted here: scalars stay text.
use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};

use super::error::{Error, Place};

const MAX_DEPTH: usize = 64;
/// Most values in a file, aliases written out.
const MAX_NODES: usize = 100_000;

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub place: Place,
    pub data: Data,
}

#[derive(Debug, Clone)]
pub(super) enum Data {
    Scalar(Scalar),
    List(Vec<Node>),
    /// In the order of the file; keys may repeat (the check tells).
    Map(Vec<Entry>),
}

#[derive(Debug, Clone)]
pub(super) struct Scalar {
    pub text: String,
    /// Written without quotes.
    pub plain: bool,
    /// Line on which it ends.
    pub last_line: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub place: Place,
    pub node: Node,
}

impl Node {
    /// A scalar that stands on the command line.
    pub fn flag(flag: &'static str, text: impl Into<String>) -> Self {
        let scalar = Scalar { text: text.into(), plain: false, last_line: 0 };
        Self { place: Place::Flag(flag), data: Data::Scalar(scalar) }
    }

    /// `key:` with nothing after it, or `null`.
    pub fn is_null(&self) -> bool {
        matches!(&self.data, Data::Scalar(s) if s.plain && matches!(s.text.as_str(), "" | "~" | "null"))
    }
}

/// Reads the one document of `text`; `None` when there is none. The first error ends it: what follows would be noise.
pub(super) fn read(text: &str) -> Result<Option<Node>, Error> {
    let mut builder = Builder::default();
    let mut documents = 0;
    for step in Parser::new_from_str(text) {
        let (event, span) =
            step.map_err(|e| fatal(place(e.marker()), format!("this is not valid YAML: {}", e.info()), YAML_HINT))?;
        let at = place(&span.start);
        match event {
            Event::DocumentStart(_) => {
                documents += 1;
                if documents > 1 {
                    return Err(fatal(at, "a second document begins here", "keep one document; remove the `---`"));
                }
            }
            Event::Alias(anchor) => builder.alias(anchor, at)?,
            Event::Scalar(value, style, anchor, tag) => {
                refuse_tag(tag.as_deref(), at)?;
                let plain = style == ScalarStyle::Plain;
                let scalar = Scalar { text: value.into_owned(), plain, last_line: span.end.line() };
                builder
                    .add(Built { node: Node { place: at, data: Data::Scalar(scalar) }, size: 1, height: 0 }, anchor)?;
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_tag(tag.as_deref(), at)?;
                builder.open(at, Data::List(Vec::new()), anchor)?;
            }
            Event::MappingStart(anchor, tag) => {
                refuse_tag(tag.as_deref(), at)?;
                builder.open(at, Data::Map(Vec::new()), anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => builder.close()?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }
    Ok(builder.root)
}

const YAML_HINT: &str = "indent with spaces (not tabs), and quote values that hold `: `, ` #` or begin with one of & * ! % @ ` { [; \
                         inside { } and [ ], quote \"${VARIABLES}\"";

fn place(mark: &Marker) -> Place {
    Place::Text { line: mark.line(), column: mark.col() + 1 }
}

fn fatal(place: Place, problem: impl Into<String>, remedy: &str) -> Error {
    Error::new(place, "", problem, remedy)
}

fn refuse_tag(tag: Option<&saphyr_parser::Tag>, at: Place) -> Result<(), Error> {
    match tag {
        Some(tag) if !tag.is_yaml_core_schema() => {
            Err(fatal(at, "tags are not used here", "remove the word that begins with `!`, or quote the value"))
        }
        _ => Ok(()),
    }
}

/// A finished value, with what an alias to it would cost.
#[derive(Clone)]
struct Built {
    node: Node,
    size: usize,
    height: usize,
}

/// A list or map whose end has not come.
struct Open {
    built: Built,
    anchor: usize,
    key: Option<(String, Place)>,
}

#[derive(Default)]
struct Builder {
    stack: Vec<Open>,
    anchors: HashMap<usize, Built>,
    root: Option<Node>,
    nodes: usize,
}

impl Builder {
    fn open(&mut self, at: Place, data: Data, anchor: usize) -> Result<(), Error> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(fatal(
                at,
                format!("nested more than {MAX_DEPTH} deep"),
                "no key needs that; look for a stray `[`",
            ));
        }
        self.stack.push(Open {
            built: Built { node: Node { place: at, data }, size: 1, height: 1 },
            anchor,
            key: None,
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        match self.stack.pop() {
            Some(open) => self.add(open.built, open.anchor),
            None => Ok(()),
        }
    }

    fn alias(&mut self, anchor: usize, at: Place) -> Result<(), Error> {
        let Some(built) = self.anchors.get(&anchor) else {
            return Err(fatal(at, "this alias stands inside the value it refers to", "write the value out"));
        };
        if self.nodes + built.size > MAX_NODES || self.stack.len() + built.height > MAX_DEPTH {
            return Err(fatal(at, "aliases make the file too large", "write the values out, or use fewer aliases"));
        }
        let built = built.clone();
        // An alias counts in full each time: this is what stops a file of aliases to aliases.
        self.nodes += built.size - 1;
        self.add(built, 0)
    }

    fn add(&mut self, built: Built, anchor: usize) -> Result<(), Error> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let problem = format!("more than {MAX_NODES} values");
            return Err(fatal(built.node.place, problem, "split the fleet over several routers"));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, built.clone());
        }
        let Some(parent) = self.stack.last_mut() else {
            self.root = Some(built.node);
            return Ok(());
        };
        parent.built.size += built.size;
        parent.built.height = parent.built.height.max(built.height + 1);
        let node = built.node;
        match (&mut parent.built.node.data, parent.key.take()) {
            (Data::Map(entries), Some((key, place))) => entries.push(Entry { key, place, node }),
            (Data::Map(_), None) => match node.data {
                Data::Scalar(scalar) => parent.key = Some((scalar.text, node.place)),
                _ => return Err(fatal(node.place, "a key must be a word", "write `key: value`")),
            },
            (Data::List(items), _) => items.push(node),
            (Data::Scalar(_), _) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        match read(text) {
            Ok(_) => panic!("read"),
            Err(e) => format!("{:?} {}", e.place, e.problem),
        }
    }

    #[test]
    fn knows_lines_and_columns() {
        let Ok(Some(Node { data: Data::Map(entries), .. })) = read("a: 1\nb:\n  - x\n  - {c: 'd'}\n") else { panic!() };
        assert_eq!(entries[1].place, Place::Text { line: 2, column: 1 });
        let Data::List(items) = &entries[1].node.data else { panic!() };
        assert_eq!(items[0].place, Place::Text { line: 3, column: 5 });
        let Data::Map(inner) = &items[1].data else { panic!() };
        assert_eq!(inner[0].node.place, Place::Text { line: 4, column: 9 });
    }

    #[test]
    fn aliases_are_written_out_but_bounded() {
        let Ok(Some(Node { data: Data::Map(entries), .. })) = read("a: &x [1, 2]\nb: *x\n") else { panic!() };
        assert!(matches!(&entries[1].node.data, Data::List(items) if items.len() == 2));
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..12 {
            let item = format!("*a{}", i - 1);
            bomb += &format!("a{i}: &a{i} [{}]\n", [item.as_str(); 10].join(", "));
        }
        assert!(problem(&bomb).ends_with("aliases make the file too large"), "{}", problem(&bomb));
        assert!(problem("a: &x [*x]").ends_with("this alias stands inside the value it refers to"));
    }

    #[test]
    fn depth_is_bounded() {
        assert!(read(&format!("{}{}", "[".repeat(64), "]".repeat(64))).is_ok());
        assert_eq!(
            problem(&format!("{}{}", "[".repeat(65), "]".repeat(65))),
            "Text { line: 1, column: 65 } nested more than 64 deep"
        );
    }
}
