//! The naive truth: every block of an engine in a list, with all its tokens. Slow, and plainly right.
use std::collections::{HashMap, HashSet};

use super::*;
use crate::prefix::hash;

#[derive(Debug, Clone)]
struct Node {
    /// The engine's block before it.
    parent: Option<usize>,
    /// All tokens of the prompt up to its end, and what blocks are made of beside.
    root: u64,
    tokens: Vec<u32>,
    extras: Vec<(usize, u64)>,
    size: usize,
    copies: [u32; 4],
    /// It may be stored again, or something after it is held.
    kept: bool,
}

#[derive(Debug, Default)]
pub struct Replica {
    nodes: Vec<Node>,
    /// The engine's hashes; `None` for one that is void.
    hashes: HashMap<u64, Option<usize>>,
    /// The size of its pages, where they are smaller than a block.
    small: Option<usize>,
}

impl Node {
    fn is_small(&self) -> bool {
        self.size < BLOCK_TOKENS
    }

    /// The own chain up to its end.
    fn chain(&self) -> Vec<u64> {
        let (blocks, _) = self.tokens.as_chunks::<BLOCK_TOKENS>();
        let chain = blocks.iter().enumerate().scan(self.root, |parent, (block, tokens)| {
            let own = hash::next(*parent, tokens);
            let here = self.extras.iter().filter(|(at, _)| at / BLOCK_TOKENS == block);
            *parent = here.fold(own, |own, &(at, extra)| {
                let at = (at % BLOCK_TOKENS) as u64;
                hash::marked(if at == 0 { own } else { hash::marked(own, at) }, extra)
            });
            Some(*parent)
        });
        chain.collect()
    }

    /// The own blocks that it ends.
    fn owns(&self) -> Vec<u64> {
        if self.tokens.len().is_multiple_of(BLOCK_TOKENS) {
            let mut chain = self.chain();
            chain.split_off(chain.len() - (self.size / BLOCK_TOKENS).max(1))
        } else {
            Vec::new()
        }
    }
}

impl Replica {
    fn present(&self, hash: u64) -> Option<usize> {
        self.hashes.get(&hash).copied().flatten().filter(|&node| self.nodes[node].copies != [0; 4])
    }

    /// Own blocks that are held, in any tier or on the device.
    pub fn held(&self, device: bool) -> HashSet<u64> {
        let is = |node: &Node| if device { node.copies[0] > 0 } else { node.copies != [0; 4] };
        let whole = |node: &Node| {
            let (mut node, mut whole) = (node, is(node));
            while node.is_small() && node.tokens.len() % BLOCK_TOKENS != node.size % BLOCK_TOKENS {
                node = &self.nodes[node.parent.unwrap()];
                whole &= is(node);
            }
            whole
        };
        self.nodes.iter().filter(|node| whole(node)).flat_map(Node::owns).collect()
    }

    pub fn store(&mut self, stored: &Stored<'_>) -> Result<usize, Unstored> {
        if stored.tokens.is_empty() && stored.block_size == 0 {
            for hash in stored.hashes {
                if let Some(node) = self.present(*hash) {
                    self.nodes[node].copies[stored.tier as usize] += 1;
                }
            }
            return Ok(0);
        }
        let before = self.held(false).len();
        let size = stored.block_size as usize;
        if size < BLOCK_TOKENS {
            if self.hashes.is_empty() {
                self.small.get_or_insert(size);
            }
            if self.small != Some(size) {
                return Err(Unstored::BlockSize);
            }
        } else if self.small.is_some() {
            return Err(Unstored::BlockSize);
        }
        let mut parent = match stored.parent {
            None => None,
            Some(hash) => Some(self.present(hash).ok_or(Unstored::UnknownParent)?),
        };
        for (at, (hash, tokens)) in stored.hashes.iter().zip(stored.tokens.chunks(size)).enumerate() {
            let mut node = Node {
                parent,
                root: stored.root,
                tokens: Vec::new(),
                extras: Vec::new(),
                size,
                copies: [0; 4],
                kept: true,
            };
            if let Some(parent) = parent {
                let before = &self.nodes[parent];
                (node.root, node.tokens, node.extras) = (before.root, before.tokens.clone(), before.extras.clone());
            }
            node.extras.extend(stored.extras.get(at).copied().flatten().map(|extra| (node.tokens.len(), extra)));
            node.tokens.extend(tokens);
            let id = match self.hashes.get(hash) {
                None => {
                    self.nodes.push(node);
                    self.hashes.insert(*hash, Some(self.nodes.len() - 1));
                    self.nodes.len() - 1
                }
                Some(None) => return Err(Unstored::Ambiguous),
                Some(&Some(id)) => {
                    let there = &self.nodes[id];
                    let equal = (there.root, &there.tokens, &there.extras, there.size)
                        == (node.root, &node.tokens, &node.extras, node.size);
                    if !equal || node.is_small() && there.parent != node.parent {
                        self.nodes[id].copies = [0; 4];
                        self.hashes.insert(*hash, None);
                        self.prune();
                        return Err(Unstored::Ambiguous);
                    }
                    id
                }
            };
            self.nodes[id].copies[stored.tier as usize] += 1;
            parent = Some(id);
        }
        Ok(self.held(false).len() - before)
    }

    pub fn remove(&mut self, tier: Tier, hashes: &[u64]) -> usize {
        let mut found = 0;
        for hash in hashes {
            let Some(node) = self.present(*hash) else { continue };
            let count = &mut self.nodes[node].copies[tier as usize];
            if *count > 0 {
                *count -= 1;
                found += 1;
                self.prune();
            }
        }
        found
    }

    /// Forgets what is not there; a small page only once nothing comes after it.
    fn prune(&mut self) {
        loop {
            let parents: HashSet<usize> =
                self.nodes.iter().filter(|node| node.kept && node.is_small()).filter_map(|node| node.parent).collect();
            let gone =
                self.nodes.iter().enumerate().filter(|(id, node)| {
                    node.kept && node.copies == [0; 4] && !(node.is_small() && parents.contains(id))
                });
            let Some(id) = gone.map(|(id, _)| id).next() else { return };
            self.nodes[id].kept = false;
            self.hashes.retain(|_, node| *node != Some(id));
        }
    }
}
