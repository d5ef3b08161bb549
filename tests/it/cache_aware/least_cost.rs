//! `least_cost` in a router: it follows prefixes, says what each replica would cost, and knows who wrote an answer.
use super::*;

/// A pool for `m` by cost, with a millisecond a token.
fn costing(mocks: &[Mock]) -> Pool {
    let pool = Pool::model("m").with("policy: least_cost").with("prefill: { per_token: 1ms }");
    // On a busy machine a short prompt may take long; and mocks count four bytes as a token.
    let pool = pool.with("tokens: { budget: 1m, parity: false }");
    mocks.iter().fold(pool, |pool, mock| pool.at(mock.address()))
}

/// What a request would cost at each replica, in seconds.
fn costs(explained: &Value) -> Vec<(String, f64)> {
    let candidates = explained["candidates"].as_array().expect("a list");
    let cost = |row: &Value| row["cost_seconds"].as_f64().unwrap_or_else(|| panic!("no cost_seconds in {row}"));
    candidates.iter().map(|row| (row["replica"].as_str().expect("a name").to_owned(), cost(row))).collect()
}

/// With and without a tokenizer: four conversations whose turns take turns, and no session to go by.
#[tokio::test(flavor = "multi_thread")]
async fn conversations_go_back_to_where_they_cost_least() {
    for basis in ["text", "tokens"] {
        let mocks = [Mock::fast(), Mock::fast(), Mock::fast()];
        let pool = costing(&mocks);
        let proxy = Proxy::start(&open(if basis == "tokens" { pool.with(&tokenizer()) } else { pool })).await;
        let mut conversations = ["red ", "green ", "blue ", "grey "].map(Conversation::about);
        let mut homes = Vec::new();
        for conversation in &mut conversations {
            let (_, from) = conversation.turn(&proxy, "and what of it?").await;
            assert_eq!((from.matched, &*from.reason), (0, "no_match"), "{basis}: nobody has seen it");
            homes.push((from.replica, 0, 0));
        }
        let mut used: Vec<_> = homes.iter().map(|(home, ..)| home.clone()).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), 3, "{basis}: the new ones are dealt out");
        for turn in 1..4 {
            for (conversation, (home, matched, cached)) in conversations.iter_mut().zip(&mut homes) {
                let question = format!("{turn}: ").repeat(40);
                let body = conversation.body(&question);
                let said = explained(&proxy, &body).await;
                let mut costs = costs(&said);
                costs.sort_by(|a, b| a.1.total_cmp(&b.1));
                assert!(costs[0].0 == *home && costs[0].1 < costs[1].1 / 2.0, "{basis}, turn {turn}: {said}");
                assert_eq!(said["decision"]["replica"], **home, "{basis}, turn {turn}");
                let (answer, from) = conversation.turn(&proxy, &question).await;
                assert_eq!((&from.replica, &*from.reason), (&*home, "prefix"), "{basis}, turn {turn}");
                assert!(from.matched > *matched, "{basis}, turn {turn}: {} after {matched}", from.matched);
                *matched = from.matched;
                let reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
                assert!(reported > *cached, "{basis}, turn {turn}: the engine reports {reported} after {cached}");
                *cached = reported;
            }
        }
        proxy.load_is_zero().await;
        assert_eq!(pins(&proxy).await, 0);
    }
}

/// Whoever computed a question wrote its answer, and needs not compute that for the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_goes_to_the_replica_that_wrote_the_answer_in_it() {
    for basis in ["text", "tokens"] {
        let mocks = [Mock::fast(), Mock::fast(), Mock::fast()];
        let pool = costing(&mocks);
        let proxy = Proxy::start(&open(if basis == "tokens" { pool.with(&tokenizer()) } else { pool })).await;
        let mut conversation = Conversation::about("red ");
        let (_, first) = conversation.turn(&proxy, "and what of it?").await;
        let without = explained(&proxy, &conversation.body("and then?")).await;
        // A client may have got a longer answer than this engine gives.
        let last = conversation.messages.last_mut().expect("an answer");
        *last = json!({"role": "assistant", "content": "green ".repeat(500)});
        let said = explained(&proxy, &conversation.body("and then?")).await;
        assert_eq!(said["basis"], basis);
        let all = said["tokens"].as_f64().expect("a number");
        let longer = all - without["tokens"].as_f64().expect("a number");
        assert!(longer > 400.0, "{basis}: {said}");
        let matched = matched_on(&said, &first.replica) as f64;
        assert_eq!(matched_on(&without, &first.replica) as f64, matched, "{basis}: what is known of matches");
        for (replica, cost) in costs(&said) {
            let computed = cost * 1e3;
            if replica == first.replica {
                assert!(computed < all - matched - 0.8 * longer, "{basis}: {computed} of {said}");
            } else {
                assert!((computed - all).abs() < 1.0, "{basis}: {computed} of {said}");
            }
        }
        let (_, second) = conversation.turn(&proxy, "and then?").await;
        assert_eq!((second.replica, &*second.reason), (first.replica, "prefix"), "{basis}");
        assert_eq!(second.matched as f64, matched, "{basis}");
    }
}
