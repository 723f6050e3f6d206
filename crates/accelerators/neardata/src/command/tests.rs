//! Messages come back as they were sent, and bytes that are none are refused.

use lockwork_procedure::assembly::fuzz::catalog;
use proptest::prelude::*;

use super::answer::{Answer, Content, Elements, decode_outcome, decode_piece, encode_outcome};
use super::*;
use crate::device::{DeviceError, DeviceStatus, Modified, Piece, Ran, Tuple};
use crate::record::RecordId;

fn version(vid: u32, image: Option<usize>) -> Version {
    Version { vid: Vid(vid), number: vid + 1, created: 7, image: image.map(|bytes| vec![vid as u8; bytes].into()) }
}

fn requests() -> Vec<Request> {
    let [accounts, orders] = catalog().try_into().expect("two tables");
    let accounts_divided = accounts.clone().partition_by_hash("id").expect("a key column");
    let operation = |purpose| {
        let (program, block) = (vec![1, 2, 3], vec![9; 40]);
        Request::Run(Operation { table: 3, purpose, program, block, snapshot: 77 })
    };
    vec![
        Request::CreateTable(accounts),
        Request::CreateTable(accounts_divided),
        Request::CreateTable(orders.replicate()),
        Request::Tables,
        Request::Tuples(9),
        Request::Flush { table: 1, watermark: 5, versions: vec![] },
        Request::Flush { table: 1, watermark: 5, versions: vec![version(1, Some(24)), version(2, None)] },
        Request::Read { table: 2, vid: Vid(u32::MAX), snapshot: u64::MAX },
        operation(Purpose::Filter),
        operation(Purpose::Aggregate(vec![("a".into(), Fold::Sum), ("b".into(), Fold::Min), ("".into(), Fold::Max)])),
        operation(Purpose::Update(TransactionId(4))),
        Request::Commit { transaction: TransactionId(4), timestamp: 8 },
        Request::Abort(TransactionId(4)),
        Request::Collect(5),
        Request::Status,
    ]
}

fn outcomes() -> Vec<Result<Answer, DeviceError>> {
    let (table, vid) = (3, Vid(4));
    vec![
        Ok(Answer::Nothing),
        Ok(Answer::Table(7)),
        Ok(Answer::Version(None)),
        Ok(Answer::Version(Some(version(3, Some(65_000))))),
        Ok(Answer::Ran(Ran { rows: 5, taken: 4 })),
        Ok(Answer::Freed(9)),
        Ok(Answer::Status(DeviceStatus { pages: 1, free_pages: 2, versions: 3, newest: 4 })),
        Err(DeviceError::Conflict { table, vid }),
        Err(DeviceError::Busy { table, vid }),
        Err(DeviceError::RowFailed { table, vid, code: 9 }),
        Err(DeviceError::Refused("no such table".into())),
        Err(DeviceError::Full("10 pages".into())),
        Err(DeviceError::Io("the disk".into())),
        Err(DeviceError::Corrupt("page 7".into())),
        Err(DeviceError::Gone("ä".into())),
    ]
}

#[test]
fn requests_and_outcomes_come_back() {
    for request in requests() {
        let bytes = request.encode();
        assert_eq!(Request::decode(&bytes).as_ref(), Ok(&request));
        fuzz::message(&bytes);
        for cut in 0..bytes.len() {
            // A flush may end after any version.
            if let Ok(shorter) = Request::decode(&bytes[..cut]) {
                assert!(matches!(shorter, Request::Flush { .. }), "{shorter:?}");
            }
        }
    }
    for outcome in outcomes() {
        let bytes = encode_outcome(&outcome);
        assert_eq!(decode_outcome(&bytes).as_ref(), Ok(&outcome));
        for cut in 0..bytes.len() {
            assert!(decode_outcome(&bytes[..cut]).is_err(), "{outcome:?} cut after {cut} bytes");
        }
    }
}

#[test]
fn rows_that_no_memory_holds_are_refused() {
    let mut bytes = vec![0xFF; 40];
    bytes[0] = 1;
    fuzz::message(&bytes);
    let error = decode_piece(&bytes, &mut Elements::default()).unwrap_err().to_string();
    assert!(error.contains("4294967295 rows of 4294967295 bytes each in 31 bytes"), "{error}");
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let outcome = Err(DeviceError::Io("ä".repeat(5000)));
    let Ok(Err(DeviceError::Io(text))) = decode_outcome(&encode_outcome(&outcome)) else { panic!("it is an error") };
    assert_eq!(text, "ä".repeat(2048));
}

#[test]
fn a_long_flush_comes_back_from_its_fragments() {
    let versions = (0..5000).map(|vid| version(vid, (vid % 7 > 0).then_some(vid as usize % 300))).collect::<Vec<_>>();
    let mut outgoing = Outgoing::flush(3, &versions, 9).expect("short rows");
    let (mut incoming, mut fragment, mut count) = (Incoming::default(), Vec::new(), 0);
    loop {
        let last = outgoing.fragment(&mut fragment, 400);
        assert!(fragment.len() <= 400);
        incoming.push(&fragment).expect("as it was sent");
        count += 1;
        if last {
            break;
        }
    }
    assert!(count > 1000);
    assert_eq!(incoming.finish(), Ok(Request::Flush { table: 3, watermark: 9, versions }));
}

#[test]
fn what_no_row_can_be_is_refused_where_it_is_sent() {
    let versions = [version(3, Some(70_000))];
    let error = Outgoing::flush(2, &versions, 1).expect_err("too long");
    assert_eq!(error, "table 2: version 4 of tuple 3 has 70000 bytes; a row has at most 65536");
}

#[test]
fn pieces_are_cut_to_length_and_come_back() {
    let (limit, mut memory) = (1000, Elements::default());
    let vids = (0..777).map(Vid).collect::<Vec<_>>();
    let images = (0..777 * 24).map(|byte| byte as u8).collect::<Vec<_>>();
    let (mut vids_back, mut images_back) = (Vec::new(), Vec::new());
    answer::rows(&vids, &images, limit, |parts| {
        let bytes = parts.concat();
        assert!(bytes.len() <= limit);
        match decode_piece(&bytes, &mut memory)? {
            Content::Bulk(Piece::Rows { vids, images }) => {
                vids_back.extend_from_slice(vids);
                images_back.extend_from_slice(images);
            }
            other => panic!("{other:?}"),
        }
        Ok::<_, Malformed>(())
    })
    .expect("as it was sent");
    assert!(vids_back == vids && images_back == images);

    let all = vids.iter().map(|&vid| Modified { vid, number: 3, record: RecordId::new(vid.0 + 1, 5) });
    let (all, mut back) = (all.collect::<Vec<_>>(), Vec::new());
    answer::modified(&all, limit, |parts| {
        match decode_piece(&parts.concat(), &mut memory)? {
            Content::Bulk(Piece::Modified(some)) => back.extend_from_slice(some),
            other => panic!("{other:?}"),
        }
        Ok::<_, Malformed>(())
    })
    .expect("as it was sent");
    assert_eq!(back, all);

    for values in [None, Some([1, i64::MIN].as_slice()), Some(&[])] {
        let bytes = answer::folded(7, values);
        let piece = decode_piece(&bytes, &mut memory).expect("as it was sent");
        assert_eq!(piece, Content::Bulk(Piece::Folded { rows: 7, values }));
    }

    let tuple = Tuple { vid: Vid(1), number: 2, created: 3, record: RecordId::NONE, key: &[1, 2] };
    let mut bytes = Vec::new();
    answer::start_tuples(&mut bytes);
    answer::put_tuple(&mut bytes, &tuple);
    answer::put_tuple(&mut bytes, &Tuple { key: &[], ..tuple });
    let tuples = decode_piece(&bytes, &mut memory).expect("as it was sent");
    assert_eq!(tuples, Content::Tuples(vec![tuple, Tuple { key: &[], ..tuple }]));
}

#[test]
fn lengths_are_not_believed() {
    // A piece that speaks of 2^32 - 1 rows of 2^32 - 1 bytes, and a flush with such an image.
    let mut rows = vec![1];
    rows.extend([0xff; 8]);
    let error = decode_piece(&rows, &mut Elements::default()).expect_err("they do not follow");
    assert_eq!(error.to_string(), "byte 9: 4294967295 rows of 4294967295 bytes each in 0 bytes");
    let mut flush = Request::Flush { table: 1, watermark: 1, versions: vec![version(1, Some(1))] }.encode();
    let at = flush.len() - 5;
    flush[at..at + 4].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    let error = Request::decode(&flush).expect_err("it does not follow");
    assert_eq!(error.to_string(), "byte 31: an image of 4294967280 bytes; a row has at most 65536");
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), first in 0_u8..12) {
        fuzz::message(&bytes);
        let mut likely = bytes;
        if let Some(byte) = likely.first_mut() {
            *byte = first;
        }
        fuzz::message(&likely);
    }

    #[test]
    fn a_spoilt_message_is_another_or_refused(which in 0..15_usize, at in any::<prop::sample::Index>(), byte: u8) {
        let mut request = requests()[which].encode();
        let at_request = at.index(request.len());
        request[at_request] = byte;
        fuzz::message(&request);
        let mut outcome = encode_outcome(&outcomes()[which]);
        let at_outcome = at.index(outcome.len());
        outcome[at_outcome] = byte;
        fuzz::message(&outcome);
    }
}
