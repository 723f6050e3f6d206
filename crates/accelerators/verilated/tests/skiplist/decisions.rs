//! Decision words, by the rules in hardware/rtl/README.md.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Reserved,
    Dirty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    Wait,
    Conflict,
}

#[derive(Clone, Copy, Debug, Default)]
struct Word {
    state: State,
    write_time: u64,
    read_time: u64,
    count: u64,
    own: u64,
}

#[derive(Debug)]
pub(crate) struct Decisions {
    words: Vec<Word>,
}

impl Decisions {
    pub(crate) fn new() -> Self {
        Self { words: vec![Word::default(); 1 << 14] }
    }

    pub(crate) fn entry(table: u64, hash: u32) -> u64 {
        (u64::from(hash) ^ table << 8) & 0x3FFF
    }

    pub(crate) fn ask(&mut self, entry: u64, time: u64, write: bool) -> Verdict {
        let word = &mut self.words[entry as usize];
        let own = word.write_time == time;
        match word.state {
            State::Dirty if own => {
                word.count += 1;
                return Verdict::Granted;
            }
            State::Dirty | State::Reserved if !own => {
                return if word.write_time < time { Verdict::Wait } else { Verdict::Conflict };
            }
            _ => {}
        }
        let reserved = word.state == State::Reserved;
        if !write {
            if word.write_time > time {
                return Verdict::Conflict;
            }
            if time > word.read_time {
                (word.read_time, word.own) = (time, 1);
            } else if time == word.read_time {
                word.own += 1;
            }
            word.count += 1;
            return Verdict::Granted;
        }
        if !reserved && (word.read_time > time || word.write_time > time) {
            return Verdict::Conflict;
        }
        let mine = if time == word.read_time { word.own } else { 0 };
        word.write_time = time;
        if word.count > mine {
            word.state = State::Reserved;
            return Verdict::Wait;
        }
        word.state = State::Dirty;
        word.count += 1;
        word.own += u64::from(time == word.read_time);
        Verdict::Granted
    }

    pub(crate) fn release(&mut self, entry: u64, time: u64) {
        let word = &mut self.words[entry as usize];
        assert!(word.count > 0, "a grant on {entry} is given back that nobody has (time {time})");
        word.count -= 1;
        if time == word.read_time && word.own > 0 {
            word.own -= 1;
        }
        if word.count == 0 && word.state == State::Dirty {
            word.state = State::Free;
        }
    }

    /// Nothing is held.
    pub(crate) fn check(&self) {
        assert!(self.words.iter().all(|word| word.count == 0 && word.state != State::Dirty), "a grant was lost");
    }
}
