//! MD5 (RFC 1321), for the study's hash rule alone: its skew is one draw, so no other hash will do.

/// The digest of `message`.
pub(super) fn md5(message: &[u8]) -> [u8; 16] {
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64) + if padded.len() % 64 > 56 { 64 } else { 0 }, 0);
    let bits = (message.len() as u64).wrapping_mul(8).to_le_bytes();
    let end = padded.len();
    padded[end - 8..].copy_from_slice(&bits);

    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for chunk in padded.chunks_exact(64) {
        round(&mut state, chunk);
    }
    let mut digest = [0; 16];
    for (out, word) in digest.chunks_exact_mut(4).zip(state) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    digest
}

/// Left rotations, by round and step.
const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

fn round(state: &mut [u32; 4], chunk: &[u8]) {
    let word = |at: usize| u32::from_le_bytes([chunk[4 * at], chunk[4 * at + 1], chunk[4 * at + 2], chunk[4 * at + 3]]);
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..64_usize {
        let (mixed, at) = match step / 16 {
            0 => ((b & c) | (!b & d), step),
            1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
            2 => (b ^ c ^ d, (3 * step + 5) % 16),
            _ => (c ^ (b | !d), (7 * step) % 16),
        };
        // RFC 1321, 3.4: the integer part of 4294967296 · |sin(step + 1)|.
        let sine = (((step + 1) as f64).sin().abs() * 4_294_967_296.0) as u32;
        let sum = a.wrapping_add(mixed).wrapping_add(sine).wrapping_add(word(at));
        (a, d, c) = (d, c, b);
        b = b.wrapping_add(sum.rotate_left(SHIFTS[step / 16][step % 4]));
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    use super::md5;

    #[test]
    fn the_rfcs_own_examples() {
        let digits = "12345678901234567890123456789012345678901234567890123456789012345678901234567890";
        for (message, digest) in [
            ("", 0xd41d_8cd9_8f00_b204_e980_0998_ecf8_427e_u128),
            ("a", 0x0cc1_75b9_c0f1_b6a8_31c3_99e2_6977_2661),
            ("message digest", 0xf96b_697d_7cb7_938d_525a_2f31_aaf1_61d0),
            (digits, 0x57ed_f4a2_2be3_c955_ac49_da2e_2107_b67a),
        ] {
            assert_eq!(u128::from_be_bytes(md5(message.as_bytes())), digest, "{message}");
        }
        // Every length around a chunk's end: no panic, and no two alike.
        let digests: std::collections::HashSet<_> = (0..130).map(|length| md5(&vec![7; length])).collect();
        assert_eq!(digests.len(), 130);
    }
}
