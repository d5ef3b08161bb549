//! The truth against the naive one, step by step.
use proptest::collection::vec;
use proptest::prelude::*;

use super::oracle::Replica;
use super::*;

const REPLICAS: usize = 3;
const TIERS: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote];

#[derive(Debug, Clone)]
enum Step {
    Store { replica: usize, prompt: Prompt, from: usize, blocks: usize, tier: Tier },
    Known { replica: usize, prompt: Prompt, tier: Tier },
    Remove { replica: usize, prompt: Prompt, from: usize, blocks: usize, backwards: bool, tier: Tier },
    Clear(usize),
    Unfollow(usize),
    Follow(usize),
    Sweep(usize),
}

/// What an engine may tell of.
#[derive(Debug, Clone)]
struct Prompt {
    /// Values, and how many tokens of each.
    turns: Vec<(u32, usize)>,
    /// Not the replica's usual size.
    other_size: Option<usize>,
    /// An image, by its block and id.
    image: Option<(usize, u64)>,
    /// The engine's hashes of one content may differ.
    variant: u64,
    /// The engine hashes a block's own tokens only.
    unchained: bool,
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let turns = vec((0..2_u32, prop_oneof![1..40_usize, Just(16), Just(32)]), 1..6);
    let other_size =
        prop_oneof![12 => Just(None), 1 => prop_oneof![Just(4), Just(16), Just(32), Just(48)].prop_map(Some)];
    let image = prop_oneof![6 => Just(None), 1 => (0..5_usize, 1..3_u64).prop_map(Some)];
    let variant = prop_oneof![8 => Just(0), 1 => Just(1_u64)];
    (turns, other_size, image, variant, prop::bool::weighted(0.04)).prop_map(
        |(turns, other_size, image, variant, unchained)| Prompt { turns, other_size, image, variant, unchained },
    )
}

impl Prompt {
    fn engine(&self, size: usize) -> Engine {
        let size = self.other_size.unwrap_or(size);
        let mut tokens: Vec<u32> = self.turns.iter().flat_map(|&(value, count)| vec![value; count]).collect();
        tokens.truncate(tokens.len() / size * size);
        let mut engine = Engine::new(self.variant, size, &tokens);
        if let Some((block, id)) = self.image {
            engine.extras = vec![None; block + 1];
            engine.extras[block] = Some(id);
        }
        engine
    }

    fn hashes(&self, engine: &Engine) -> Vec<u64> {
        if self.unchained {
            engine.tokens.chunks(engine.size).map(|tokens| Engine::new(0, engine.size, tokens).hashes()[0]).collect()
        } else {
            engine.hashes()
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let replica = || 0..REPLICAS;
    let tier = || prop_oneof![4 => Just(Tier::Device), 1 => any::<usize>().prop_map(|at| TIERS[at % 4])];
    let range = || (prop_oneof![2 => Just(0), 1 => 0..8_usize], prop_oneof![1 => 1..6_usize, 1 => Just(1000)]);
    prop_oneof![
        12 => (replica(), prompt(), range(), tier())
            .prop_map(|(replica, prompt, (from, blocks), tier)| Step::Store { replica, prompt, from, blocks, tier }),
        1 => (replica(), prompt(), tier()).prop_map(|(replica, prompt, tier)| Step::Known { replica, prompt, tier }),
        10 => (replica(), prompt(), range(), any::<bool>(), tier()).prop_map(|(replica, prompt, (from, blocks), backwards, tier)| {
            Step::Remove { replica, prompt, from, blocks, backwards, tier }
        }),
        1 => replica().prop_map(Step::Clear),
        1 => replica().prop_map(Step::Unfollow),
        2 => replica().prop_map(Step::Follow),
        2 => (0..40_usize).prop_map(Step::Sweep),
    ]
}

/// Both, side by side.
struct Pair {
    truth: Truth,
    naive: Vec<Option<Replica>>,
    sizes: Vec<usize>,
    /// Every prompt that was told of, and used again for removals.
    prompts: Vec<Prompt>,
    chains: Vec<Vec<u64>>,
}

impl Pair {
    fn new(sizes: Vec<usize>) -> Self {
        let naive = sizes.iter().map(|_| Some(Replica::default())).collect();
        Self { truth: following(REPLICAS), naive, sizes, prompts: Vec::new(), chains: vec![Vec::new()] }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Store { replica, prompt, from, blocks, tier } => {
                let engine = prompt.engine(self.sizes[replica]);
                let hashes = prompt.hashes(&engine);
                let from = from.min(hashes.len());
                let to = (from + blocks).min(hashes.len());
                let stored = Stored {
                    root: ROOT,
                    parent: from.checked_sub(1).map(|before| hashes[before]),
                    hashes: &hashes[from..to],
                    tokens: &engine.tokens[from * engine.size..to * engine.size],
                    block_size: engine.size as u32,
                    tier,
                    extras: engine.extras.get(from..to.min(engine.extras.len())).unwrap_or_default(),
                };
                let expected = self.naive[replica].as_mut().map_or(Err(Unstored::NotFollowed), |it| it.store(&stored));
                assert_eq!(self.truth.store(replica, &stored), expected);
                self.chains.push(engine.chain());
                self.prompts.push(prompt);
            }
            Step::Known { replica, prompt, tier } => {
                let engine = prompt.engine(self.sizes[replica]);
                let hashes = prompt.hashes(&engine);
                let stored =
                    Stored { root: 0, parent: None, hashes: &hashes, tokens: &[], block_size: 0, tier, extras: &[] };
                let expected = self.naive[replica].as_mut().map_or(Err(Unstored::NotFollowed), |it| it.store(&stored));
                assert_eq!(self.truth.store(replica, &stored), expected);
            }
            Step::Remove { replica, prompt, from, blocks, backwards, tier } => {
                // Mostly of something that was there.
                let prompt = self.prompts.get(from * 7 % self.prompts.len().max(1)).unwrap_or(&prompt);
                let mut hashes = prompt.hashes(&prompt.engine(self.sizes[replica]));
                hashes.drain(..from.min(hashes.len()));
                hashes.truncate(blocks);
                if backwards {
                    hashes.reverse();
                }
                let expected = self.naive[replica].as_mut().map_or(0, |naive| naive.remove(tier, &hashes));
                assert_eq!(self.truth.remove(replica, tier, &hashes), expected);
            }
            Step::Clear(replica) => {
                self.truth.clear(replica);
                self.naive[replica] = self.naive[replica].take().map(|_| Replica::default());
            }
            Step::Unfollow(replica) => {
                self.truth.unfollow(replica);
                self.naive[replica] = None;
            }
            Step::Follow(replica) => {
                self.truth.follow(replica);
                self.naive[replica] = Some(Replica::default());
            }
            Step::Sweep(steps) => _ = self.truth.sweep(steps),
        }
    }

    /// Both say the same of every chain, and so of every block.
    fn compare(&self) {
        self.truth.check();
        let mut depths = Vec::new();
        let held = |replica: &Option<Replica>, device| replica.as_ref().map(|it| it.held(device)).unwrap_or_default();
        let all: Vec<_> = self.naive.iter().map(|replica| [false, true].map(|device| held(replica, device))).collect();
        for chain in &self.chains {
            self.truth.lookup(chain, &mut depths);
            for (replica, [any, device]) in all.iter().enumerate() {
                let depth = |held: &std::collections::HashSet<u64>| {
                    chain.iter().take_while(|hash| held.contains(hash)).count() as u32
                };
                assert_eq!(depths[replica], Held { any: depth(any), device: depth(device) }, "of {chain:x?}");
            }
        }
        for (replica, [any, _]) in all.iter().enumerate() {
            assert_eq!(self.truth.held(replica), any.len());
        }
        assert_eq!(self.truth.stats().pairs, all.iter().map(|[any, _]| any.len()).sum::<usize>());
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Wrong depths, lost or revived blocks, blurred copies, false credit of any kind: all would show as another depth.
    #[test]
    fn equals_the_naive_truth(
        sizes in vec(prop_oneof![Just(1), Just(4), Just(8), Just(16), Just(16), Just(32)], REPLICAS),
        steps in vec(step(), 1..60),
    ) {
        let mut pair = Pair::new(sizes);
        for step in steps {
            pair.apply(step);
            pair.compare();
        }
        (0..REPLICAS).for_each(|replica| pair.truth.unfollow(replica));
        while pair.truth.sweep(3) {
            pair.truth.check();
        }
        prop_assert_eq!(pair.truth.stats().blocks, 0);
    }
}
