//! Timestamp ordering on decision words, as `hardware/rtl/README.md` ("Decision words") has it: the golden model of
//! `lw_judge`.

use lockwork_fpga::trace::Verdict;

/// Grants of a word that are too many.
const FULL: u32 = 255;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// A writer waits for the readers to go.
    Reserved,
    Dirty,
}

/// A decision word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    state: State,
    write_time: u32,
    read_time: u32,
    /// Grants outstanding, and those of the transaction whose time is `read_time`.
    count: u32,
    own: u32,
}

impl Word {
    /// The verdict, by the rules as they are numbered there.
    fn rule(&self, time: u32, write: bool) -> Verdict {
        let own = if self.read_time == time { self.own } else { 0 };
        let others = self.count - own > 0;
        let verdict = match self.state {
            State::Dirty if self.write_time == time => Verdict::Granted,
            State::Reserved if self.write_time == time => {
                if others {
                    Verdict::Waits
                } else {
                    Verdict::Granted
                }
            }
            State::Dirty | State::Reserved if self.write_time < time => Verdict::Waits,
            State::Dirty | State::Reserved => Verdict::Late,
            State::Free if self.write_time > time => Verdict::Late,
            State::Free if write && self.read_time > time => Verdict::Late,
            State::Free if write && others => Verdict::Waits,
            State::Free => Verdict::Granted,
        };
        if verdict == Verdict::Granted && self.count == FULL { Verdict::Late } else { verdict }
    }

    /// Decides on a request. `parks`: if it has to wait it is parked, and the word reserved for it if it is free.
    pub(crate) fn request(&mut self, time: u32, write: bool, parks: bool) -> Verdict {
        let verdict = self.rule(time, write);
        match verdict {
            Verdict::Waits if parks && self.state == State::Free => {
                (self.state, self.write_time) = (State::Reserved, time);
            }
            Verdict::Waits => {}
            // The one it was reserved for gives up.
            Verdict::Late if self.state == State::Reserved && self.write_time == time => self.state = State::Free,
            Verdict::Late => {}
            Verdict::Granted => {
                self.count += 1;
                if self.read_time == time {
                    self.own += 1;
                }
                if write || self.state != State::Free {
                    (self.state, self.write_time) = (State::Dirty, time);
                } else if time > self.read_time {
                    (self.read_time, self.own) = (time, 1);
                }
            }
        }
        verdict
    }

    /// Whether it would have to wait.
    pub(crate) fn must_wait(&self, time: u32, write: bool) -> bool {
        self.rule(time, write) == Verdict::Waits
    }

    /// Lets one grant go; `false` if there is none.
    pub(crate) fn release(&mut self, time: u32) -> bool {
        if self.count == 0 {
            return false;
        }
        self.count -= 1;
        if self.read_time == time && self.own > 0 {
            self.own -= 1;
        }
        if self.count == 0 && self.state == State::Dirty {
            self.state = State::Free;
        }
        true
    }

    /// Whether nobody holds it or waits for it.
    pub(crate) fn is_free(&self) -> bool {
        self.state == State::Free && self.count == 0
    }
}
