//! How far a chain goes along a run of hashes.

/// How many leading blocks of `chain` a run has, which begins with the same hash, and whose last one is `last`. Equal there
/// is equal before, so the last hash comes first, and no others are read where the chain goes through the whole run; then
/// the place after which another chain left it, `fork`, if that is one; else bisection.
pub(super) fn common(hashes: &[u64], last: u64, fork: Option<u32>, chain: &[u64]) -> usize {
    let len = hashes.len().min(chain.len());
    let last = if len == hashes.len() { last } else { hashes[len - 1] };
    if last == chain[len - 1] {
        return len;
    }
    let (mut same, mut other) = (1, len - 1);
    if let Some(fork) = fork.map(|fork| fork as usize).filter(|&fork| fork < other) {
        if hashes[fork] != chain[fork] {
            other = fork;
        } else if hashes[fork + 1] != chain[fork + 1] {
            return fork + 1;
        } else {
            same = fork + 2;
        }
    }
    while same < other {
        let middle = same + (other - same) / 2;
        if hashes[middle] == chain[middle] { same = middle + 1 } else { other = middle }
    }
    same
}
