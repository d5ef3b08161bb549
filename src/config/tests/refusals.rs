//! Each case of `refusals.txt`: a configuration that must be refused, and all of what must be said.
//!
//! `UPDATE_CASES=1 cargo test refusals` writes what is said now; read the difference before you commit it.
use std::path::Path;

use super::*;

const FILE: &str = "src/config/tests/refusals.txt";

#[test]
fn refusals_say_exactly_this() {
    let path = repository().join(FILE);
    let committed = std::fs::read_to_string(&path).unwrap();
    let dir = base_dir();
    std::fs::write(dir.path().join("empty"), "\n").unwrap();
    std::fs::create_dir(dir.path().join("odd")).unwrap();
    std::fs::write(dir.path().join("odd/tokenizer.json"), r#"{"version": "1.0"}"#).unwrap();
    let mut written = String::new();
    let mut count = 0;
    for case in committed.split("=== ").skip(1) {
        let (name, rest) = case.split_once('\n').unwrap();
        let (text, _) = rest.split_once("--- says\n").unwrap();
        let said =
            match parse(&document(text), "c.yaml", dir.path(), &|name| (name == "SET").then(|| "from env".into())) {
                Ok(_) => panic!("{name}: accepted"),
                Err(errors) => errors.to_string().replace(&dir.path().display().to_string(), "DIR"),
            };
        written += &format!("=== {name}\n{text}--- says\n{said}\n\n");
        count += 1;
    }
    assert!(count >= 25, "{count} cases");
    if std::env::var_os("UPDATE_CASES").is_some() {
        std::fs::write(&path, &written).unwrap();
        return;
    }
    for (now, then) in written.split("=== ").zip(committed.split("=== ")) {
        assert_eq!(now.trim_end(), then.trim_end(), "see the head of src/config/tests/refusals.rs");
    }
}

/// `GOOD` stands for a valid pool, so that a case is about its own fault.
fn document(text: &str) -> String {
    text.replace("GOOD", "pools: [{ model: m, replicas: [http://a] }]")
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_with_a_remedy() {
    let errors = load(Path::new("no/such.yaml"), &no_env).unwrap_err().to_string();
    assert!(errors.starts_with("no/such.yaml:1:1: cannot be read: "), "{errors}");
}

#[test]
fn a_huge_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge.yaml");
    std::fs::write(&path, vec![b'#'; (4 << 20) + 1]).unwrap();
    assert!(load(&path, &no_env).unwrap_err().to_string().contains("is larger than 4MiB"));
}
