//! Every example of `docs/sql.md` does what stands there.

mod common;

use common::{KINDS, Session};

#[test]
fn the_examples_answer_what_stands_below_them() {
    let text = include_str!("../../../../docs/sql.md");
    for kind in KINDS {
        let mut session = Session::new(kind);
        let (mut examples, mut answer) = (0, String::new());
        for (number, block) in text.split("```").enumerate() {
            if number % 2 == 0 {
                continue;
            }
            if let Some(script) = block.strip_prefix("sql\n") {
                assert!(answer.is_empty(), "an example answers what does not stand below it:\n{answer}");
                answer = session.run(script);
                examples += 1;
            } else if let Some(expected) = block.strip_prefix("text\n") {
                assert_eq!(answer, expected, "on {kind}");
                answer.clear();
            } else {
                panic!("a block of docs/sql.md is neither sql nor text: {block}");
            }
        }
        assert!(examples >= 6 && answer.is_empty(), "{examples} examples; {answer}");
    }
}
