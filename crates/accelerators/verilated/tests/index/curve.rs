//! How many cycles an operation takes with so many under way, each alone in its transaction.

use lockwork_procedure::schema::ColumnType::I64;
use lockwork_verilated::Model;

use super::machine::{DbRequest, INSERT, Machine, READY, Release, SEARCH};
use super::memory::Behaviour;
use super::tables::{Placed, Table};

const KEYS: u64 = 4096;
const ROWS: u64 = 1 << 20;
const IMAGES: u64 = 1 << 19;

/// Cycles an operation, of `operations` ones on different keys. Memory takes a word a cycle and answers after 80.
pub(crate) fn cycles(model: &Model, op: u64, contexts: u64, operations: u64) -> f64 {
    let behaviour = Behaviour { latency: (80, 80), busy: 0, refused: 0 };
    let mut machine = Machine::new(model.again(1), 1, 4 << 20, behaviour, 1);
    let mut table = Table::new(0, &[("k", I64), ("v", I64)], 1, Placed::Byte(0), KEYS);
    table.head_bits = 14;
    for key in 0..KEYS {
        machine.memory.set_word(IMAGES + 8 * key, u64::from_le_bytes(table.image(key).try_into().expect("8 bytes")));
        if op == SEARCH {
            table.load(&mut machine.memory, 0, ROWS + table.stride * key, key, key);
        }
    }
    machine.configure(&[table.clone()], &[(0, 0, ROWS, ROWS + table.stride * KEYS)]);
    let (begin, mut issued, mut answered) = (machine.now, 0, 0);
    let mut free: Vec<u64> = (0..contexts).collect();
    let mut running = vec![(0, 0); contexts as usize];
    let mut rows = std::collections::HashSet::new();
    while answered < operations {
        while issued < operations
            && let Some(context) = free.pop()
        {
            let (key, stamp) = (issued * 5 % KEYS, issued + 1);
            running[context as usize] = (key, stamp);
            let key_address = IMAGES + 8 * key;
            let request = DbRequest { op, table: 0, stamp, context, cp: 0, key_address, limit: 0, source: 0, delta: 0 };
            machine.workers[0].db.push_back(request);
            issued += 1;
        }
        machine.step();
        for answer in std::mem::take(&mut machine.workers[0].answers) {
            let (key, stamp) = running[answer.context as usize];
            // Two keys of one decision word, inserted at once, may conflict.
            if answer.answer == READY {
                assert_eq!(machine.memory.word(answer.value + 8), table.key(key).0[0], "{answer:?}");
                let value = if op == INSERT { 0 } else { key };
                assert_eq!(table.values(&machine.memory, answer.value), Some(value), "{answer:?}");
                assert!(rows.insert(answer.value), "a row twice: {answer:?}");
                machine.workers[0].releases.push_back(Release { owner: 0, stamp, entry: answer.entry });
            } else {
                assert!(op == INSERT && answer.value == 0, "{answer:?}");
            }
            free.push(answer.context);
            answered += 1;
        }
        assert!(machine.now - begin < 2000 * operations, "it hangs");
    }
    (machine.now - begin) as f64 / operations as f64
}
