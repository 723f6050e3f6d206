//! What goes wrong, and how often.

use lockwork_random::Random;

const US: u64 = 1000;
const MS: u64 = 1000 * US;

/// What goes wrong, in times per million packets, or times per simulated second and machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Packets lost.
    pub lost: u32,
    /// Packets doubled.
    pub doubled: u32,
    /// Packets of which a bit is turned over.
    pub damaged: u32,
    /// Packets that come late.
    pub late: u32,
    /// How late, at most, in nanoseconds.
    pub latest: u64,
    /// Times that a machine is cut off.
    pub cuts: u32,
    /// Times that a machine stands still.
    pub pauses: u32,
    /// Times that a machine crashes, or leaves without giving back.
    pub crashes: u32,
    /// Times that the service crashes, by which all words are lost. Counted once, not for each machine.
    pub restarts: u32,
}

impl Faults {
    /// Everything.
    pub const ALL: Self = Self {
        lost: 20_000,
        doubled: 20_000,
        damaged: 1_000,
        late: 20_000,
        latest: 80 * MS,
        cuts: 1,
        pauses: 1,
        crashes: 1,
        restarts: 0,
    };

    /// A network without faults: packets still overtake each other.
    pub const NONE: Self =
        Self { lost: 0, doubled: 0, damaged: 0, late: 0, latest: 0, cuts: 0, pauses: 0, crashes: 0, restarts: 0 };

    /// Delays that are over before 128 decisions on one lock, and no machine that stands still while others decide.
    #[must_use]
    pub const fn mild(self) -> Self {
        Self { pauses: 0, latest: if self.latest < 500 * US { self.latest } else { 500 * US }, ..self }
    }

    /// Each by its name: an option of `lockwork-bench sim locks`.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 9] {
        let Self { lost, doubled, damaged, late, latest, cuts, pauses, crashes, restarts } = *self;
        let counts = [
            ("lost", lost),
            ("doubled", doubled),
            ("damaged", damaged),
            ("late", late),
            ("cuts", cuts),
            ("pauses", pauses),
            ("crashes", crashes),
            ("restarts", restarts),
        ];
        let [a, b, c, d, e, f, g, h] = counts.map(|(name, count)| (name, u64::from(count)));
        [a, b, c, d, e, f, g, h, ("latest-ns", latest)]
    }

    /// How long a packet takes, and whether that is late.
    pub(super) fn delay(&self, random: &mut Random) -> (u64, bool) {
        let usual = 2 * US + random.scaled(8 * US);
        if self.latest == 0 || !random.in_a_million(u64::from(self.late)) {
            return (usual, false);
        }
        // Every order of magnitude is as likely as the others.
        let most = (self.latest / (20 * US)).max(1).ilog2();
        let scale = (20 * US) << random.scaled(u64::from(most) + 1);
        (usual + random.scaled(scale.min(self.latest)), true)
    }
}
