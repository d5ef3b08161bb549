//! What is always true of a truth, whatever it was told.
use std::collections::{HashMap, HashSet};

use super::runs::Place;
use super::table;
use super::*;

type Covers = HashMap<(u32, u32), [u32; 2]>;

impl Truth {
    /// Panics where the parts do not fit each other.
    pub(in crate::prefix) fn check(&self) {
        self.runs.check();
        let mut kept = Covers::new();
        for (id, life) in self.lives.iter().enumerate() {
            life.engine.check();
            let followed = self.places[id] != NOWHERE;
            let covers = self.covers(life, &mut kept);
            self.check_life(life, &covers, followed);
            if self.vacant.contains(&(id as u16)) {
                assert!(covers.is_empty() && life.bytes() == 0, "a life that may begin is swept");
            }
            let places = self.present.iter().filter(|&&present| usize::from(present) == id).count();
            assert_eq!(places, usize::from(followed));
            assert_eq!(
                followed,
                !self.gone.contains(&(id as u16)) && !self.vacant.contains(&(id as u16)),
                "a life is present, gone or vacant"
            );
        }
        self.check_life(&self.keeper, &kept, true);
        let followed = || self.lives.iter().enumerate().filter(|(id, _)| self.places[*id] != NOWHERE);
        assert_eq!(followed().map(|(_, life)| life.held).sum::<usize>(), self.pairs);
        let lives = self.lives.iter().map(Life::bytes).sum::<usize>() + self.keeper.bytes();
        assert_eq!(lives, self.inner, "bytes of the lives");
    }

    /// How many of the engine's blocks are of each own block; adds what the keeper has to hold.
    fn covers(&self, life: &Life, kept: &mut Covers) -> Covers {
        let mut covers = Covers::new();
        let mut cover = |holding: u32, offset: u32, held: [bool; 2]| {
            let cover = covers.entry((holding, offset)).or_default();
            cover.iter_mut().zip(held).for_each(|(cover, held)| *cover += u32::from(held));
        };
        let entries: Vec<_> = life.engine.iter().filter(|entry| !entry.is_void()).collect();
        if let Some(pages) = &life.pages {
            let pages = pages.check();
            for entry in &entries {
                let copies = life.copies(entry);
                let page = pages.get(&entry.target).expect("an entry's page is there");
                assert_eq!(page.key, entry.key);
                assert_eq!(page.held, [copies != [0; 4], copies[0] > 0]);
            }
            for (place, held) in pages.values().filter_map(|page| page.block) {
                let holder = |life| self.runs[place.run].holders().iter().find(move |holder| holder.life == life);
                kept.entry((holder(NOWHERE).expect("the keeper holds it").holding, place.offset)).or_default()[0] += 1;
                if held[0] {
                    let (id, ..) = life.parts_for_check();
                    cover(holder(id).expect("it is held").holding, place.offset, held);
                }
            }
            return covers;
        }
        // The copies of a larger block are with its first part, and the parts are found from there.
        let mut device = HashMap::new();
        for entry in &entries {
            let copies = life.copies(entry);
            assert!(entry.mask() > 0 || copies != [0; 4] || entry.parts() > 1);
            device.insert(entry.key, copies[0] > 0);
        }
        for entry in &entries {
            let on_device = device[&entry.key] || self.is_later_part(life, entry.key, &device);
            cover(entry.target, entry.offset(), [true, on_device]);
        }
        covers
    }

    /// Whether a key is of a later part of a block that is on the device: the keys can be undone, but are simply tried.
    fn is_later_part(&self, life: &Life, key: u64, device: &HashMap<u64, bool>) -> bool {
        let firsts = life.engine.iter().filter(|entry| entry.parts() > 1 && device.get(&entry.key) == Some(&true));
        let mut hashes = firsts.map(|entry| (table::hash_of(entry.key), entry.parts()));
        hashes.any(|(hash, parts)| (1..parts).any(|part| table::key(hash, part) == key))
    }

    fn check_life(&self, life: &Life, covers: &Covers, followed: bool) {
        let (id, more, again) = life.parts_for_check();
        assert!(!followed || more.values().all(|copies| copies.iter().any(|&count| count > 1)));
        assert!(!followed || more.keys().all(|&key| life.engine.get(key).is_some_and(|entry| entry.mask() == 0)));
        let mut held = [0; 2];
        for (run, of) in self.runs.iter() {
            for holder in of.holders().iter().filter(|holder| holder.life == id) {
                for offset in 0..of.hashes().len() as u32 {
                    let cover = covers.get(&(holder.holding, offset)).copied().unwrap_or_default();
                    let held_here = self.runs.holds(Place { run, offset }, id);
                    let again = again.get(&(holder.holding, offset)).copied().unwrap_or_default();
                    for kind in [0, 1] {
                        if kind == 0 || followed {
                            assert_eq!(held_here[kind], cover[kind] > 0, "held while one of the engine's is of it");
                            assert_eq!(cover[kind].saturating_sub(1), again[kind]);
                        }
                        held[kind] += usize::from(held_here[kind]);
                    }
                }
            }
        }
        assert_eq!(held[0], life.held);
        assert_eq!(held[0], covers.values().filter(|cover| cover[0] > 0).count(), "all of it stands in runs");
    }
}

impl Runs {
    /// Whether a life holds a block, in any tier and on the device.
    fn holds(&self, place: Place, life: u16) -> [bool; 2] {
        let holder = self[place.run].holders().iter().find(|holder| holder.life == life).expect("a holder");
        let beyond = self.holding(holder.holding).beyond.as_ref();
        let bit = |bits: &[u64]| {
            bits.get(place.offset as usize / 64).is_some_and(|word| word >> (place.offset % 64) & 1 == 1)
        };
        [
            place.offset < holder.any || beyond.is_some_and(|beyond| bit(&beyond.any)),
            place.offset < holder.device || beyond.is_some_and(|beyond| bit(&beyond.device)),
        ]
    }

    fn check(&self) {
        let (mut hashes, mut holders, mut blocks) = (HashSet::new(), 0, 0);
        for (id, run) in self.iter() {
            assert!(run.hashes().iter().all(|hash| hashes.insert(*hash)), "a hash stands in one place only");
            assert_eq!(self.find(run.hashes()[0]), Some(id), "a run is found by its first hash");
            let last = Place { run: id, offset: run.hashes().len() as u32 - 1 };
            assert!(run.holders().iter().any(|holder| self.holds(last, holder.life)[0]), "someone holds its last");
            blocks += run.hashes().len();
            let mut lives = HashSet::new();
            for (seat, holder) in run.holders().iter().enumerate() {
                assert!(lives.insert(holder.life), "a life has one holding of a run");
                let holding = self.holding(holder.holding);
                assert_eq!((holding.run, holding.seat), (id, seat as u32));
                assert!(
                    holder.any > 0 || holding.beyond.as_ref().is_some_and(|beyond| !beyond.any.is_empty()),
                    "a holder holds something"
                );
                holders += 1;
            }
        }
        assert_eq!(blocks, self.blocks());
        self.check_bytes(holders);
    }
}
