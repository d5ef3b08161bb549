//! How the router is started.
use crate::support::*;

#[test]
fn serve_without_enough_says_both_ways_to_start() {
    for args in [&["serve"][..], &["serve", "--listen", "127.0.0.1:0"], &["serve", "--replica", "http://127.0.0.1:1"]] {
        let mut process = Process::start(args, &[]);
        assert_eq!(process.wait(PATIENCE).code(), Some(2), "{args:?}");
        for way in ["warmroute serve --config ", "warmroute serve --listen "] {
            process.line(way, |line| line.contains(way).then_some(()));
        }
    }
}
