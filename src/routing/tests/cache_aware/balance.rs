//! Hits and balance, in closed loops.
use super::*;

/// 4,000 characters of system prompt and 1,000 a turn, at 4 a token.
fn chats() -> Vec<Turns> {
    (0..48).map(|name| session((1, 1_000), name, 6, 250)).collect()
}

#[test]
fn forty_eight_sessions_with_a_common_system_prompt() {
    for clients in [8, 32] {
        for order in [Order::BySession, Order::ByTurn] {
            for seed in 0..12 {
                let members = fleet(&[1; 4]);
                let mut router = router_of(cache_aware(), &members, seed);
                let outcome = play(&mut router, &members, chats(), clients, order);
                println!(
                    "{clients} {order:?} {seed}: {:.3} {:.3} {:?}",
                    outcome.hit(),
                    outcome.busiest(),
                    outcome.requests
                );
            }
        }
    }
}

#[test]
fn a_hundred_and_sixty_short_sessions_at_128_concurrent() {
    for order in [Order::BySession, Order::ByTurn] {
        for seed in 0..12 {
            let sessions = (0..160).map(|name| session((1, 50), name, 4, 250)).collect();
            let members = fleet(&[1; 4]);
            let mut router = router_of(CacheAware { min_match_tokens: 64, ..cache_aware() }, &members, seed);
            let outcome = play(&mut router, &members, sessions, 128, order);
            println!("{order:?} {seed}: {:.3} {:.3} {:?}", outcome.hit(), outcome.busiest(), outcome.requests);
        }
    }
}
