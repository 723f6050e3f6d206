//! A daemon that goes on where another ended, or is followed by none: see `lockwork_lock_protocol::report`.

use super::racks::LOST_ETCD;
use super::records::{MemberLog, Records};
use super::{Lockd, random_sessions};
use crate::plane::DataPlane;
use lockwork_lock_protocol::packet::{Kind, Packet, Problem};
use lockwork_lock_protocol::registry::{Config, Member, Registry};
use lockwork_lock_protocol::report::in_era;
use lockwork_lock_protocol::word::Machine;
use std::io;
use std::net::SocketAddr;

impl<P: DataPlane> Lockd<P> {
    /// Writes down who takes part from now on, and goes on with the members of a lockd before this one, whose sessions
    /// are in `era`, which no lockd had before. Whoever has the address is the only one who decides, so call this after
    /// it is bound, and read the members after that.
    ///
    /// In era 1 there are none, and whoever joins waits for a lease, as without records: a lockd before this one may
    /// have written nothing down.
    pub fn restore(&mut self, records: Box<dyn Records>, era: u32, members: Vec<Member<SocketAddr>>) {
        self.now = self.start.elapsed().as_nanos() as u64;
        let (first_session, session_key) = random_sessions();
        let config = Config {
            recorded: true,
            first_token: self.first_token,
            session_key,
            ..Config::new(self.service.lease_ms, in_era(first_session, era))
        };
        self.naming.survived(members.iter().map(|member| member.session));
        self.registry = Registry::restore(self.now, config, self.service, members);
        self.recovery_began = self.registry.recovering().map(|_| self.now);
        self.holds_back = self.recovery_began.is_some();
        self.roll = Some(MemberLog::new(records));
        if era > 1 {
            self.opens = 0;
        } else if self.several.is_some() && self.opens > 0 {
            self.opens += LOST_ETCD.as_nanos() as u64;
        }
    }

    /// Lets the data plane decide once all words are back, and says how far it is.
    pub(super) fn look_at_recovery(&mut self) -> io::Result<()> {
        if self.holds_back && self.registry.recovering().is_none() {
            self.recovered()?;
        }
        if !self.holds_back
            && !self.registry.settles()
            && let Some(began) = self.recovery_began.take()
        {
            let ms = (self.now - began) as f64 / 1e6;
            tracing::info!("agents decide after {ms:.1} ms: all that is held is enrolled");
        }
        Ok(())
    }

    /// All words are back: the data plane decides from now on.
    fn recovered(&mut self) -> io::Result<()> {
        self.holds_back = false;
        // First, because a data plane tells whom it does not know that their sessions have ended.
        let all: Vec<_> = self.registry.machines().collect();
        all.into_iter().for_each(|(machine, session, address)| self.take_in(machine, session, address));
        self.plane.begin()?;
        let ms = (self.now - self.recovery_began.unwrap_or(self.now)) as f64 / 1e6;
        let (locks, machines) = (self.service.locks, self.registry.summary().machines);
        let held = self.registry.counters().restored;
        tracing::info!("{locks} locks are back after {ms:.1} ms, {held} of them held; {machines} machines go on");
        Ok(())
    }

    /// Tells all machines that their sessions have ended: nobody goes on with them. After [`Lockd::run`].
    pub fn end_sessions(&mut self) {
        let mut over = Packet::new(Kind::Error, 0);
        over.token = Problem::NoSuchSession as u64;
        for (machine, session, address) in self.registry.machines() {
            let packet = Packet { target: machine, requester: machine, requester_session: session, ..over };
            self.endpoint.push(address, [&packet.header(0, self.key.as_ref()), &[]]);
        }
        self.endpoint.flush();
    }

    pub(super) fn take_in(&mut self, machine: Machine, session: u32, address: SocketAddr) {
        if let Err(error) = self.plane.set_machine(machine, session, address) {
            tracing::warn!(machine = machine.0, "cannot take {address} in: {error}");
            self.registry.dismiss(self.now, machine);
        }
    }
}
