//! What runs: kernels, tables on the device, and the slots through which batches go.

use std::time::Instant;

use lockwork_engine::registry::Registry;
use lockwork_engine::{BatchReport, Cause, DeviceTimes, EngineError, Tally};
use lockwork_procedure::block::Batch;
use opencl3::event::Event;
use opencl3::kernel::Kernel;
use opencl3::program::Program;
use opencl3::types::cl_event;

use crate::appetite::{InsertBounds, RowDemand};
use crate::heap::{Heap, bytes_of};
use crate::plan::{MAX_PLANNED, Plan, Planner};
use crate::session::{Argument, DeviceBuffer, Lane, Session, nanoseconds};

/// Batches on their way at the same time: one executes while the other is planned and moved.
pub(crate) const DEPTH: usize = 2;
/// How often a work-item of `opencl-two-phase` begins again before it leaves the transaction for later.
const ATTEMPTS: u32 = 32;
/// Private memory of a group on a CPU device: a quarter of the stack that threads commonly have.
const STACK_BYTES: u64 = 2 << 20;
/// Work-items that take on what was left.
const LATE_WORKERS: u32 = 1024;

/// Built kernels.
pub(crate) struct Built {
    pub(crate) source: String,
    execute: Kernel,
    recycle: Kernel,
    rest: Option<Kernel>,
    group: usize,
    // Behind the kernels that were made from it.
    _program: Program,
}

impl Built {
    /// Builds the kernels of `source` for the device; `private_bytes` is what all its procedures keep for one call.
    pub(crate) fn new(
        session: &Session,
        source: String,
        private_bytes: u64,
        two_phase: bool,
    ) -> Result<Self, EngineError> {
        let group = match session.is_cpu() {
            // All work-items of a group keep their private memory on one stack.
            true => 1_usize << (STACK_BYTES / private_bytes.max(1)).clamp(1, 64).ilog2(),
            false => 128,
        };
        let (group, language) = (session.group(group), session.language());
        let staged = if session.is_cpu() { "-DLW_STAGED" } else { "" };
        let options = format!("-DLW_GROUP={group} -DLW_ATTEMPTS={ATTEMPTS} {staged} {language}");
        let program = session.build(&source, &options)?;
        Ok(Self {
            execute: session.kernel(&program, "lw_execute")?,
            recycle: session.kernel(&program, "lw_recycle")?,
            rest: if two_phase { Some(session.kernel(&program, "lw_execute_rest")?) } else { None },
            source,
            group,
            _program: program,
        })
    }
}

/// The buffers of one batch in flight.
struct Slot {
    blocks: DeviceBuffer,
    /// `opencl-deterministic`: order and starts of the plan; `opencl-two-phase`: what was left, twice.
    lists: [DeviceBuffer; 2],
    plan: Plan,
    /// Head and tail of each table's ring after the batch.
    rings: DeviceBuffer,
    seen: Vec<u32>,
    /// `opencl-two-phase`: the first two words of the lists after the batch.
    heads: [[u32; 2]; 2],
}

/// A batch on the device.
pub(crate) struct Flight {
    batch: Batch,
    slot: usize,
    into: Vec<Event>,
    kernels: Vec<Event>,
    out: Vec<Event>,
    inserts: Vec<u64>,
    changes_keys: bool,
    planning_ns: u64,
    start: Instant,
}

impl Flight {
    /// The batch, when the device does nothing more.
    pub(crate) fn into_batch(self) -> Batch {
        self.batch
    }
}

/// A batch that did not get through, and why.
pub(crate) struct Unfinished {
    pub(crate) error: EngineError,
    pub(crate) batch: Batch,
}

/// Waits for the device when a panic is about to drop what the device writes into.
struct DrainOnPanic<'a>(&'a Session);

impl Drop for DrainOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.drain();
        }
    }
}

/// See the module.
pub(crate) struct Running {
    pub(crate) heap: Heap,
    habits: Vec<InsertBounds>,
    planner: Option<Planner>,
    slots: [Option<Slot>; DEPTH],
    next_slot: usize,
    /// What the next batch may insert, and whether it inserts or removes.
    reserved: (Vec<u64>, bool),
    /// Rows set aside for batches that have not landed, by table.
    set_aside: Vec<u64>,
    /// `opencl-two-phase`: above all stamps of the batches before.
    base: u32,
}

/// What an empty list begins with: nothing left, no conflicts.
static EMPTY: [u32; 2] = [0; 2];

impl Running {
    pub(crate) fn new(heap: Heap, registry: &Registry) -> Self {
        let tables = heap.tables().len();
        Self {
            heap,
            habits: registry.all().map(InsertBounds::of).collect(),
            planner: None,
            slots: [const { None }; DEPTH],
            next_slot: 0,
            reserved: (Vec::new(), false),
            set_aside: vec![0; tables],
            base: 0,
        }
    }

    /// What a batch asks of the memory for rows.
    pub(crate) fn appetite(&self, batch: &Batch) -> RowDemand {
        RowDemand::of(&self.habits, self.heap.tables().len(), batch)
    }

    /// Sets rows aside for the batch that is launched next.
    pub(crate) fn reserve(&mut self, appetite: RowDemand) {
        for ((free, aside), wanted) in self.heap.free.iter_mut().zip(&mut self.set_aside).zip(&appetite.most) {
            // A batch that could take more than there is runs all the same; what finds no row fails alone.
            *free = free.saturating_sub(*wanted);
            *aside = aside.saturating_add(*wanted);
        }
        self.reserved = (appetite.most, appetite.changes_keys);
    }

    /// Runs every kernel on nothing: some platforms compile one when it is first started.
    pub(crate) fn warm(&mut self, session: &Session, built: &Built) -> Result<(), EngineError> {
        let block = Batch::new(0, 1)?;
        self.slot(session, &block, 0)?;
        let slot = self.slots[0].as_ref().expect("the slot was prepared");
        let [first, second] = &slot.lists;
        let common = [
            Argument::Buffer(&self.heap.buffer),
            Argument::Buffer(&self.heap.descriptors),
            Argument::Buffer(&slot.blocks),
            Argument::Word(block.stride() as u32),
            Argument::Long(0),
        ];
        let [zero, first, second] = [Argument::Word(0), Argument::Buffer(first), Argument::Buffer(second)];
        let execute = match built.rest {
            None => [&common[..], &[first, second, zero, zero]].concat(),
            Some(_) => [&common[..], &[zero, zero, first]].concat(),
        };
        let rest = [&common[..], &[zero, zero, first, second]].concat();
        let recycle = [common[0], common[1], zero, Argument::Buffer(&slot.rings)];
        let kernels =
            [(Some(&built.execute), &execute[..]), (built.rest.as_ref(), &rest), (Some(&built.recycle), &recycle)];
        for (kernel, arguments) in kernels {
            let Some(kernel) = kernel else { continue };
            // SAFETY: the arguments are those of hardware/opencl/kernels.cl; there are no units, blocks, workers or
            // tables to work on.
            let event = unsafe { session.launch(kernel, arguments, 1, built.group, &[])? };
            session.wait(&event, "starting a kernel")?;
        }
        Ok(())
    }

    /// Plans a batch and starts everything that it needs. On an error something may still be running: drain the session
    /// before the batch is dropped.
    pub(crate) fn launch(
        &mut self,
        session: &Session,
        built: &Built,
        registry: &Registry,
        batch: Batch,
        first: u64,
    ) -> Result<Flight, Box<Unfinished>> {
        let start = Instant::now();
        let (inserts, changes_keys) = std::mem::take(&mut self.reserved);
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % DEPTH;
        let mut flight = Flight {
            batch,
            slot,
            into: Vec::new(),
            kernels: Vec::new(),
            out: Vec::new(),
            inserts,
            changes_keys,
            planning_ns: 0,
            start,
        };
        if flight.batch.is_empty() {
            return Ok(flight);
        }
        // Behind `flight`, so that it is dropped before: nothing writes into a batch that unwinding takes away.
        let _guard = DrainOnPanic(session);
        let two_phase = built.rest.is_some();
        let started = self
            .slot(session, &flight.batch, slot)
            .and_then(|()| if two_phase { Ok(()) } else { self.plan(registry, &mut flight) })
            .and_then(|()| self.enqueue(session, built, &mut flight, first));
        match started {
            Ok(()) => Ok(flight),
            Err(error) => Err(Box::new(Unfinished { error, batch: flight.batch })),
        }
    }

    /// Makes sure that the slot's buffers hold the batch. They grow with the largest batch, and never shrink.
    fn slot(&mut self, session: &Session, batch: &Batch, number: usize) -> Result<(), EngineError> {
        // A chain's start and a wave's end for each block, at most, or a list with its head.
        let (bytes, list) = (batch.len() * batch.stride(), (batch.len() + 1) * 8);
        let mut had = (0, 0);
        if let Some(slot) = &self.slots[number] {
            had = (slot.blocks.bytes(), slot.lists[0].bytes());
            if had.0 >= bytes && had.1 >= list {
                return Ok(());
            }
        }
        // The old ones go first: there may be no memory for both.
        self.slots[number] = None;
        let (bytes, list) = (bytes.max(had.0), list.max(had.1));
        let tables = self.heap.tables().len();
        self.slots[number] = Some(Slot {
            blocks: session.allocate(bytes, "a batch of blocks")?,
            lists: [session.allocate(list, "a plan")?, session.allocate(list, "a plan")?],
            plan: Plan::default(),
            rings: session.allocate(tables * 8, "what is free")?,
            seen: vec![0; tables * 2],
            heads: [[0; 2]; 2],
        });
        Ok(())
    }

    fn plan(&mut self, registry: &Registry, flight: &mut Flight) -> Result<(), EngineError> {
        let blocks = flight.batch.len();
        if self.planner.as_ref().is_none_or(|planner| planner.capacity() < blocks.min(MAX_PLANNED)) {
            self.planner = Some(Planner::new(registry, self.heap.tables(), blocks)?);
        }
        let start = Instant::now();
        let slot = self.slots[flight.slot].as_mut().expect("the slot was prepared");
        self.planner.as_mut().expect("made above").plan(registry, &flight.batch, &mut slot.plan);
        flight.planning_ns = start.elapsed().as_nanos() as u64;
        Ok(())
    }

    fn enqueue(
        &mut self,
        session: &Session,
        built: &Built,
        flight: &mut Flight,
        first: u64,
    ) -> Result<(), EngineError> {
        let (blocks, stride) = (flight.batch.len(), flight.batch.stride());
        let bytes = blocks * stride;
        if built.rest.is_some() && u64::from(self.base) + blocks as u64 + 2 > u64::from(u32::MAX) {
            session.drain();
            self.heap.clear_locks(session)?;
            self.base = 0;
        }
        let Self { heap, slots, base, .. } = self;
        let slot = slots[flight.slot].as_mut().expect("the slot was prepared");
        // SAFETY: batch and plan stay where they are until the flight has landed or the session was drained.
        unsafe {
            let image = std::slice::from_raw_parts(flight.batch.block_ptr(0), bytes);
            flight.into.push(session.write(&mut slot.blocks, 0, image, &[])?);
            let [first_list, second_list] = &mut slot.lists;
            let lists = match built.rest {
                None => [&slot.plan.order[..], &slot.plan.starts[..]],
                Some(_) => [&EMPTY[..], &EMPTY[..]],
            };
            flight.into.push(session.write(first_list, 0, bytes_of(lists[0]), &[])?);
            flight.into.push(session.write(second_list, 0, bytes_of(lists[1]), &[])?);
        }
        session.flush(Lane::In)?;
        let after: Vec<cl_event> = flight.into.iter().map(Event::get).collect();
        let common = [
            Argument::Buffer(&heap.buffer),
            Argument::Buffer(&heap.descriptors),
            Argument::Buffer(&slot.blocks),
            Argument::Word(stride as u32),
            Argument::Long(first),
        ];
        let count = Argument::Word(heap.tables().len() as u32);
        let arguments = [common[0], common[1], count, Argument::Buffer(&slot.rings)];
        let changes_keys = flight.changes_keys;
        let recycle = |kernels: &mut Vec<Event>| -> Result<(), EngineError> {
            if changes_keys {
                // SAFETY: the arguments are those of hardware/opencl/kernels.cl; addresses come from descriptors.
                kernels.push(unsafe { session.launch(&built.recycle, &arguments, 1, built.group, &[])? });
            }
            Ok(())
        };
        // SAFETY: the arguments are those of hardware/opencl/kernels.cl; addresses come from descriptors, plan and
        // verified procedures.
        unsafe {
            match &built.rest {
                None => {
                    for &(from, units) in &slot.plan.waves {
                        let [order, starts] = &slot.lists;
                        let arguments = [
                            &common[..],
                            &[
                                Argument::Buffer(order),
                                Argument::Buffer(starts),
                                Argument::Word(from),
                                Argument::Word(units),
                            ],
                        ]
                        .concat();
                        let after = if flight.kernels.is_empty() { &after[..] } else { &[] };
                        let event = session.launch(&built.execute, &arguments, units as usize, built.group, after)?;
                        flight.kernels.push(event);
                    }
                }
                Some(rest) => {
                    let [left, next] = &slot.lists;
                    let arguments =
                        [&common[..], &[Argument::Word(*base), Argument::Word(blocks as u32), Argument::Buffer(left)]]
                            .concat();
                    flight.kernels.push(session.launch(&built.execute, &arguments, blocks, built.group, &after)?);
                    for (workers, left, next) in [(LATE_WORKERS, left, next), (1, next, left)] {
                        // What was left gave its rows back and takes them again: no more were set aside for it.
                        recycle(&mut flight.kernels)?;
                        let arguments = [
                            &common[..],
                            &[
                                Argument::Word(*base),
                                Argument::Word(workers),
                                Argument::Buffer(left),
                                Argument::Buffer(next),
                            ],
                        ]
                        .concat();
                        let event = session.launch(rest, &arguments, workers as usize, built.group, &[])?;
                        flight.kernels.push(event);
                    }
                    *base += blocks as u32 + 1;
                }
            }
            recycle(&mut flight.kernels)?;
            session.flush(Lane::Execute)?;
            let after = [flight.kernels.last().expect("every batch has a kernel").get()];
            flight.out.push(session.read(&slot.blocks, 0, flight.batch.block_ptr(0), bytes, &after)?);
            if flight.changes_keys {
                let seen = slot.seen.as_mut_ptr().cast();
                flight.out.push(session.read(&slot.rings, 0, seen, slot.seen.len() * 4, &after)?);
            }
            if built.rest.is_some() {
                for (list, head) in slot.lists.iter().zip(&mut slot.heads) {
                    flight.out.push(session.read(list, 0, head.as_mut_ptr().cast(), size_of_val(head), &after)?);
                }
            }
        }
        session.flush(Lane::Out)
    }

    /// Waits for a batch and gives it back, with the times that its commands took.
    pub(crate) fn land(&mut self, session: &Session, flight: Flight) -> Result<(Batch, BatchReport), Box<Unfinished>> {
        let doing = "executing a batch";
        let waited = flight.out.iter().try_for_each(|event| session.wait(event, doing));
        let before = || flight.into.iter().chain(&flight.kernels);
        if let Err(error) = waited.and_then(|()| before().try_for_each(|event| session.check(event, doing))) {
            session.drain();
            return Err(Box::new(Unfinished { error, batch: flight.batch }));
        }
        let slot = self.slots[flight.slot].as_ref();
        if flight.changes_keys && !flight.out.is_empty() {
            let free = Heap::free_of(&slot.expect("the batch went through it").seen);
            for (at, known) in self.heap.free.iter_mut().enumerate() {
                self.set_aside[at] = self.set_aside[at].saturating_sub(flight.inserts[at]);
                *known = free[at].saturating_sub(self.set_aside[at]);
            }
        }
        let sum = |events: &[Event]| events.iter().map(nanoseconds).sum();
        let device = DeviceTimes {
            transfer_in_ns: sum(&flight.into),
            execution_ns: sum(&flight.kernels),
            transfer_out_ns: sum(&flight.out),
            waves: slot.filter(|_| !flight.batch.is_empty()).map_or(0, |slot| slot.plan.waves.len().max(1) as u32),
            cycles: 0,
        };
        let mut tally = Tally::default();
        let conflicts = slot.map_or(0, |slot| slot.heads.iter().map(|head| u64::from(head[1])).sum());
        tally.conflicts.count(Cause::RowLock, conflicts);
        let report = BatchReport {
            tally,
            planning_ns: flight.planning_ns,
            total_ns: flight.start.elapsed().as_nanos() as u64,
            device: Some(device),
        };
        Ok((flight.batch, report))
    }
}
