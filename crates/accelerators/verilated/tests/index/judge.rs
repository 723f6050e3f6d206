//! The rules of admission, from hardware/rtl/README.md, against `lw_judge`.

use lockwork_random::Random;
use lockwork_verilated::Build;

const COUNT: u32 = 3;
const FREE: u64 = 0;
const RESERVED: u64 = 1;
const DIRTY: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    state: u64,
    inserted: bool,
    awaited: bool,
    write_time: u64,
    read_time: u64,
    count: u64,
    own: u64,
}

impl Word {
    fn fields(&self) -> [(u32, u32, u64); 7] {
        let times = 2 * COUNT;
        [
            (0, COUNT, self.own),
            (COUNT, COUNT, self.count),
            (times, 32, self.read_time),
            (times + 32, 32, self.write_time),
            (times + 64, 1, u64::from(self.awaited)),
            (times + 65, 1, u64::from(self.inserted)),
            (times + 66, 2, self.state),
        ]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Granted,
    Wait,
    Conflict,
}

/// Rules 1 to 5.
fn request(word: &mut Word, time: u64, write: bool, insert: bool, park: bool) -> Verdict {
    let of_others = word.count - if word.read_time == time { word.own } else { 0 };
    let own = word.write_time == time;
    let verdict = match word.state {
        DIRTY if own => Verdict::Granted,
        DIRTY | RESERVED if !own && word.write_time < time => Verdict::Wait,
        DIRTY | RESERVED if !own => Verdict::Conflict,
        RESERVED if of_others > 0 => Verdict::Wait,
        RESERVED => Verdict::Granted,
        _ if word.write_time > time || write && word.read_time > time => Verdict::Conflict,
        _ if write && of_others > 0 => Verdict::Wait,
        _ => Verdict::Granted,
    };
    match verdict {
        Verdict::Granted if word.count == (1 << COUNT) - 1 => {
            if word.state == RESERVED {
                word.state = FREE;
            }
            return Verdict::Conflict;
        }
        Verdict::Granted => {
            word.count += 1;
            word.own += u64::from(word.read_time == time);
            if write || word.state != FREE {
                (word.state, word.write_time) = (DIRTY, time);
                word.inserted |= insert;
            } else if time > word.read_time {
                (word.read_time, word.own) = (time, 1);
            }
        }
        Verdict::Wait if park => {
            word.awaited = true;
            if word.state == FREE {
                (word.state, word.write_time) = (RESERVED, time);
            }
        }
        _ => {}
    }
    verdict
}

/// A grant is let go. Returns whether the parked requests are to be tried.
fn release(word: &mut Word, time: u64) -> bool {
    let wake = word.awaited && (word.count == 1 || word.state == RESERVED);
    word.count -= 1;
    word.own -= u64::from(word.read_time == time && word.own > 0);
    if word.count == 0 && word.state == DIRTY {
        (word.state, word.inserted) = (FREE, false);
    }
    word.awaited &= !wake;
    wake
}

#[test]
fn verdicts_and_words_follow_the_rules() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let seed = 5;
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut model = Build::new("lw_judge").parameter("CountWidth", COUNT).load().expect("it builds");
    let [word_in, stamp, is_release, write, insert, park] =
        ["word_i", "stamp_i", "release_i", "write_i", "insert_i", "park_i"].map(|name| model.port(name).unwrap());
    let [waits, conflict, ordered, wake, word_out] =
        ["wait_o", "conflict_o", "ordered_o", "wake_o", "word_o"].map(|name| model.port(name).unwrap());
    let mut verdicts = [0; 3];
    for _ in 0..200_000 {
        let count = random.below(1 << COUNT);
        // Times above 2^31 must compare as unsigned.
        let high = if random.percent(50) { 0x8000_0000 } else { 0 };
        let now = Word {
            state: random.below(3),
            inserted: random.percent(50),
            awaited: random.percent(50),
            write_time: high + random.below(4),
            read_time: 0x7FFF_FFFE + random.below(4),
            count,
            own: random.below(count + 1),
        };
        let time = if random.percent(50) { now.write_time } else { 0x7FFF_FFFE + random.below(6) };
        let releases = random.percent(30) && count > 0;
        let [writes, parks] = [50, 70].map(|percent| random.percent(percent));
        let inserts = writes && random.percent(50);
        now.fields().into_iter().for_each(|(low, width, value)| model.set_bits(word_in, low, width, value));
        model.set(stamp, time);
        for (port, value) in [(is_release, releases), (write, writes), (insert, inserts), (park, parks)] {
            model.set(port, u64::from(value));
        }
        model.eval();
        let mut next = now;
        let context = format!("{now:?}, time {time:#x}, release {releases}, write {writes}, insert {inserts}");
        if releases {
            let wakes = release(&mut next, time);
            assert_eq!(model.get(wake) == 1, wakes, "{context}");
        } else {
            let wanted = request(&mut next, time, writes, inserts, parks);
            let found = match (model.get(waits), model.get(conflict)) {
                (1, 0) => Verdict::Wait,
                (0, 1) => Verdict::Conflict,
                (0, 0) => Verdict::Granted,
                both => panic!("{both:?}: {context}"),
            };
            assert_eq!(found, wanted, "{context}");
            verdicts[wanted as usize] += 1;
            if wanted == Verdict::Granted {
                let meets = if now.state == DIRTY {
                    now.inserted || inserts
                } else {
                    inserts && now.read_time == time && now.own > 0
                };
                assert_eq!(model.get(ordered) == 1, meets, "{context}");
            }
        }
        for (low, width, value) in next.fields() {
            assert_eq!(model.get_bits(word_out, low, width), value, "bits {low}+{width}: {context}");
        }
    }
    assert!(verdicts.iter().all(|&count| count > 10_000), "{verdicts:?}");
}
