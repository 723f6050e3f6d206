//! The procedures of every workload assemble, verify, have the layout the workload expects, and are separable where
//! they should be.

use lockwork_procedure::access::{AccessSet, access_set, overwrites, row_uses};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::isa::Opcode;
use lockwork_procedure::verified::Verified;
use lockwork_procedure::verify::verify;
use lockwork_workload::Workload;
use lockwork_workload::smallbank::{Smallbank, SmallbankConfig};
use lockwork_workload::tatp::{Tatp, TatpConfig};
use lockwork_workload::tpcc::{Mix, Tpcc, TpccConfig};
use lockwork_workload::transfer::{Transfer, TransferConfig};
use lockwork_workload::ycsb::{ReadScope, Ycsb, YcsbConfig};

/// Assembles, verifies and binds all procedures, and fills a batch.
fn bring_up(workload: &mut dyn Workload) -> Vec<Verified> {
    let schemas = workload.schemas();
    let sources = workload.sources();
    let verified: Vec<Verified> = sources
        .iter()
        .map(|(name, text)| {
            let assembled =
                assemble(text, schemas.as_slice()).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
            assert_eq!(&assembled.procedure.name, name);
            verify(assembled.procedure, schemas.as_slice()).unwrap_or_else(|error| panic!("{error}\n{text}"))
        })
        .collect();
    let find = |name: &str| verified.iter().position(|verified| verified.procedure().name == name);
    workload.bind(&mut |name| find(name).map(|at| (at as u32, verified[at].procedure().clone()))).unwrap();
    let longest = verified.iter().map(|verified| verified.procedure().layout().block_bytes.next_multiple_of(8)).max();
    assert_eq!(Some(workload.block_bytes()), longest);
    let mut batch = Batch::new(workload.block_bytes(), 200).unwrap();
    assert_eq!(workload.fill(&mut batch, 200), Ok(200));
    verified
}

fn separable(verified: &Verified) -> bool {
    matches!(access_set(verified), AccessSet::Straight(straight) if straight.fragments.is_some())
}

fn small(config: YcsbConfig) -> YcsbConfig {
    YcsbConfig { records: 1000, ..config }
}

#[test]
fn ycsb_procedures_assemble_and_verify_and_those_of_reads_and_updates_are_separable() {
    for letter in 'a'..='f' {
        for preset in [YcsbConfig::hobbes, YcsbConfig::bionicdb] {
            let config = small(preset(letter).unwrap());
            let whole = YcsbConfig { read_scope: ReadScope::Row, write_all_fields: true, ..config.clone() };
            let odd = YcsbConfig { fields: 3, field_bytes: 100, read_scope: ReadScope::Row, ..config.clone() };
            let narrow = YcsbConfig { fields: 1, field_bytes: 5, ..config.clone() };
            for config in [config, whole, odd, narrow] {
                let described = config.describe();
                for verified in bring_up(&mut Ycsb::new(config).unwrap()) {
                    // Inserts and scans change, or look at, more than one row's place.
                    let name = &verified.procedure().name;
                    let whole = name.ends_with("scan") || name.contains('i');
                    assert_eq!(separable(&verified), !whole, "{name} of {described}");
                }
            }
        }
    }
}

#[test]
fn nothing_that_ycsb_writes_has_to_be_kept_for_an_abort() {
    let config = small(YcsbConfig::bionicdb('a').unwrap());
    for verified in bring_up(&mut Ycsb::new(config).unwrap()) {
        assert!(verified.facts().iter().all(|facts| !facts.needs_undo), "{}", verified.procedure().name);
    }
}

#[test]
fn every_kind_together_verifies() {
    let mixed = YcsbConfig { operations: 4, update: 0.2, rmw: 0.2, read: 0.2, ..YcsbConfig::hobbes('e').unwrap() };
    assert_eq!(bring_up(&mut Ycsb::new(small(mixed)).unwrap()).len(), 70);
}

#[test]
fn transfer_procedures_assemble_and_verify() {
    let config = TransferConfig { accounts: 1000, ..TransferConfig::default() };
    let verified = bring_up(&mut Transfer::new(config).unwrap());
    // A transfer decides by what it has read; an audit does not.
    assert_eq!(verified.iter().map(separable).collect::<Vec<_>>(), [false, true]);
    assert!(matches!(access_set(&verified[0]), AccessSet::Straight(_)));
}

#[test]
fn smallbank_procedures_assemble_and_verify() {
    let config = SmallbankConfig { accounts: 1000, ..SmallbankConfig::default() };
    let verified = bring_up(&mut Smallbank::new(config).unwrap());
    assert_eq!(verified.len(), 6);
    assert!(verified.iter().all(|verified| matches!(access_set(verified), AccessSet::Straight(_))));
}

#[test]
fn tpcc_procedures_assemble_and_verify_and_payment_by_number_is_planned() {
    let standard = TpccConfig { customers: 100, items: 1000, ..TpccConfig::standard(1) };
    for config in [TpccConfig { mix: Mix::NewOrderPayment, by_name: 0.0, ..standard.clone() }, standard] {
        let count = if config.mix == Mix::Standard { 7 } else { 2 };
        let verified = bring_up(&mut Tpcc::new(config).unwrap());
        assert_eq!(verified.len(), count);
        for verified in &verified {
            let name = verified.procedure().name.as_str();
            // All others find keys in rows.
            let planned = !matches!(access_set(verified), AccessSet::Dependent(_));
            assert_eq!(planned, name == "payment", "{name}");
            let kept = verified.facts().iter().any(|facts| facts.needs_undo);
            assert!(!kept || !name.starts_with("payment"), "{name} keeps rows for an abort that cannot be");
        }
    }
}

/// The columns of a table that a procedure reads and writes.
fn columns(verified: &Verified, table: &str) -> (Vec<String>, Vec<String>) {
    let slot = verified.procedure().tables.iter().position(|name| name == table).unwrap();
    let schema = &verified.tables()[slot].schema;
    let names = |write: bool| {
        let uses = row_uses(verified).into_iter().filter(|row| usize::from(row.slot) == slot);
        let spans: Vec<_> = uses.flat_map(|row| if write { row.write } else { row.read }).collect();
        let meets = |offset: u32, bytes: u32| spans.iter().any(|span| span.start < offset + bytes && offset < span.end);
        let columns = schema.columns().iter().filter(|column| meets(column.offset, column.column_type.width()));
        columns.map(|column| column.name.clone()).collect()
    };
    (names(false), names(true))
}

#[test]
fn new_order_and_payment_write_different_columns() {
    let config = TpccConfig { customers: 100, items: 1000, ..TpccConfig::new_order_payment(1) };
    let verified = bring_up(&mut Tpcc::new(TpccConfig { by_name: 0.0, ..config }).unwrap());
    let of = |name: &str| verified.iter().find(|verified| verified.procedure().name == name).unwrap();
    let (new_order, payment) = (of("new_order"), of("payment"));
    assert_eq!(columns(new_order, "warehouse"), (vec!["tax".into()], vec![]));
    assert_eq!(columns(new_order, "district"), (vec!["next_o".into(), "tax".into()], vec!["next_o".into()]));
    assert_eq!(columns(payment, "warehouse").1, ["ytd"]);
    assert_eq!(columns(payment, "district").1, ["ytd"]);
    // What an abort leaves in a row that goes away is nobody's business.
    let writes = new_order.procedure().code.iter().zip(overwrites(new_order));
    let writes = writes.filter(|(i, _)| matches!(i.opcode, Opcode::Storer | Opcode::CopyRr));
    let (kept, new): (Vec<_>, Vec<_>) = writes.partition(|(_, kept)| *kept);
    assert_eq!((new.len(), kept.len()), (9, 5));
    // The index of what is moved within `data` is known not to leave it.
    assert_eq!(columns(payment, "customer").1, ["balance", "ytd_payment", "payment_cnt", "data"]);
    assert!(
        columns(new_order, "customer").0.iter().all(|name| ["discount", "last", "credit"].contains(&name.as_str()))
    );
}

#[test]
fn tatp_procedures_assemble_and_verify_and_those_by_telephone_number_are_dependent() {
    let verified = bring_up(&mut Tatp::new(TatpConfig { subscribers: 100, ..TatpConfig::default() }).unwrap());
    assert_eq!(verified.len(), 7);
    for verified in &verified {
        let by_number = verified.procedure().parameter("sub_nbr").is_some();
        assert_eq!(matches!(access_set(verified), AccessSet::Dependent(_)), by_number, "{}", verified.procedure().name);
    }
}
