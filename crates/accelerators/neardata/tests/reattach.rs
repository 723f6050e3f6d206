//! A host that gets another storage, or is opened over one: what it knows of versions, tables and places is what the
//! storage has, or the storage is refused.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Setup, all, filled, gone, numbers, set};
use lockwork_neardata::device::{Device, DeviceError, Version};
use lockwork_neardata::host::memory_device::MemoryDevice;
use lockwork_neardata::host::{HostError, Isolation};
use lockwork_neardata::record::Vid;
use lockwork_procedure::schema::{ColumnType, TableSchema};

#[test]
fn an_older_file_is_not_taken_for_the_storage() {
    let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
    let host = filled(&setup);
    host.flush_all().unwrap();
    let before = all(&host);
    let older = |versions: &[Version]| {
        let device = MemoryDevice::new(Arc::new(setup.locks.clone()));
        device.create_table(&numbers()).unwrap();
        device.flush(0, versions, 0).unwrap();
        match host.reattach(Arc::new(device)) {
            Err(HostError::Device(DeviceError::Corrupt(text))) => text,
            other => panic!("{other:?}"),
        }
    };
    let version = |vid: u32, number: u32| {
        let mut image = setup.device.contents(0, u64::MAX).into_values().nth(vid as usize).unwrap();
        image[8..16].fill(9);
        Version { vid: Vid(vid), number, created: 1, image: Some(image.into()) }
    };
    let some: Vec<Version> = (0..7).map(|vid| version(vid, 1)).collect();
    assert!(older(&some).contains("tuple 7: the storage lacks a version that it had; is it an older file?"));
    set(&host, 2, 20).unwrap();
    host.flush_all().unwrap();
    let all_of_them: Vec<Version> = (0..10).map(|vid| version(vid, 1)).collect();
    assert!(older(&all_of_them).contains("tuple 2: the storage lacks a version that it had"));
    // What the host alone has stays with it.
    set(&host, 3, 31).unwrap();
    let other: Vec<Version> = (0..10).map(|vid| version(vid, 2)).collect();
    assert!(older(&other).contains("tuple 0: the storage has a version that the host never made"));
    let other: Vec<Version> = (0..10).map(|vid| version(vid, if vid == 2 || vid == 3 { 2 } else { 1 })).collect();
    assert!(older(&other).contains("tuple 3: the storage has another version than the host made"));
    assert_eq!(all(&host)[&3], 31);
    set(&host, 3, 30).unwrap();
    // What was stored once is missing, also where the host has something newer.
    assert_eq!(host.reattach(setup.device.clone()), Ok(None));
    set(&host, 2, 21).unwrap();
    host.flush_all().unwrap();
    set(&host, 2, 20).unwrap();
    let copied: Vec<Version> =
        (0..10).map(|vid| version(vid, [1, 1, 2, 3].get(vid as usize).map_or(1, |n| *n))).collect();
    let text = older(&copied);
    assert!(text.contains("the storage's last commit is 1, and it had"), "{text}");
    assert_eq!(host.reattach(setup.device.clone()), Ok(None));
    assert_eq!(all(&host), before, "the host goes on with its own storage");
}

#[test]
fn a_table_that_the_storage_made_and_could_not_tell_of_is_there_after_reattaching() {
    for lost in 0..3 {
        let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
        let host = filled(&setup);
        let other = TableSchema::new("other", &[("id", ColumnType::I64)], 1, false).unwrap();
        setup.device.fail_at(lost, gone());
        let made = host.create_table(&other);
        assert_eq!(made.is_ok(), setup.device.will_fail(), "{made:?}");
        // What the storage did before it died and could not tell.
        setup.device.revive();
        if lost == 0 {
            setup.device.create_table(&other).unwrap();
        }
        assert_eq!(host.reattach(setup.device.clone()), Ok(None));
        assert_eq!(host.table_id("other"), Some(1));
        let mut worker = host.worker().unwrap();
        let mut transaction = worker.begin();
        assert!(transaction.insert(1, &5_i64.to_le_bytes()).unwrap().is_some());
        transaction.commit().unwrap();
        host.flush_all().unwrap();
        assert_eq!(setup.device.contents(1, u64::MAX).len(), 1);
    }
}

#[test]
fn version_numbers_go_on_beyond_what_the_vid_map_tells_apart() {
    let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
    setup.device.create_table(&numbers()).unwrap();
    let first = [5, (1 << 25) + 10, (1 << 24) + 5];
    let versions: Vec<Version> = (0..)
        .zip(first)
        .map(|(vid, number)| {
            let mut image = vec![0; numbers().row_bytes() as usize - 16];
            image[..8].copy_from_slice(&i64::from(vid).to_le_bytes());
            Version { vid: Vid(vid), number, created: 1, image: Some(image.into()) }
        })
        .collect();
    setup.device.flush(0, &versions, 0).unwrap();
    let newest = || {
        let mut numbers = Vec::new();
        setup.device.tuples(0, &mut |tuple| numbers.push(tuple.number)).unwrap();
        numbers
    };
    let mut before = newest();
    assert_eq!(before, first);
    for turn in 0..3 {
        // Opened anew and not: what is known of the numbers comes from the storage and from the host.
        let host = setup.open().unwrap();
        for value in 0..2 {
            for id in 0..3 {
                set(&host, id, turn * 10 + value).unwrap();
            }
            host.flush_all().unwrap();
            assert_eq!(host.reattach(setup.device.clone()), Ok(None), "it is the same storage");
            let after = newest();
            assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?} {after:?}");
            before = after;
            assert_eq!(all(&host), (0..3).map(|id| (id, turn * 10 + value)).collect());
        }
    }
}
