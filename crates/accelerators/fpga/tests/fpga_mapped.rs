//! A mapped card, tested with files and a responder that plays the card behind them: the processor in software, which
//! looks at the register file of the driver and answers there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lockwork_fpga::card::{Card, CardError, CardMemory};
use lockwork_fpga::mapped::{MappedCard, Window};
use lockwork_fpga::registers as at;
use memmap2::MmapRaw;

const MEMORY: u64 = 4 << 20;

struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lockwork-fpga-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, bytes| File::create(folder.join(name)).unwrap().set_len(bytes).unwrap();
        file("registers", 4096 + u64::from(at::BYTES));
        file("memory", MEMORY);
        Self(folder)
    }

    fn card(&self) -> MappedCard {
        let window =
            |name: &str, offset: &str| Window::parse(&format!("{}{offset}", self.0.join(name).display())).unwrap();
        MappedCard::open(&window("registers", "@0x1000"), &window("memory", "")).unwrap()
    }

    fn map(&self, name: &str) -> MmapRaw {
        MmapRaw::map_raw(&File::options().read(true).write(true).open(self.0.join(name)).unwrap()).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A register of the file, behind its first page.
fn register(map: &MmapRaw, offset: u32) -> &AtomicU32 {
    // SAFETY: the offset is a multiple of 4 in the mapping, which both sides use by whole words.
    unsafe { &*map.as_mut_ptr().add(4096 + offset as usize).cast::<AtomicU32>() }
}

#[test]
fn registers_and_memory_lie_where_the_files_say() {
    let files = Files::new("places");
    let mut card = files.card();
    let (registers, memory) = (files.map("registers"), files.map("memory"));
    card.write_register(at::MODE, 0x0102_0304).unwrap();
    assert_eq!(register(&registers, at::MODE).load(Ordering::SeqCst), 0x0102_0304);
    register(&registers, at::STATUS).store(77, Ordering::SeqCst);
    assert_eq!(card.read_register(at::STATUS).unwrap(), 77);
    for refused in [card.read_register(at::BYTES).map(drop), card.write_register(2, 0)] {
        assert!(matches!(refused, Err(CardError::Register { .. })), "{refused:?}");
    }

    let pattern: Vec<u8> = (0..100).collect();
    for start in [0, 1, 7, 8, 4093, MEMORY - 100] {
        for length in [0, 1, 7, 8, 9, 16, 31, 100] {
            card.zero(0, 256).unwrap();
            card.write(start, &pattern[..length]).unwrap();
            let mut back = vec![255; length];
            card.read(start, &mut back).unwrap();
            assert_eq!(back, pattern[..length], "{length} bytes at {start}");
            // SAFETY: the bytes lie in the mapping, and the card is idle.
            let raw = unsafe { std::slice::from_raw_parts(memory.as_ptr().add(start as usize), length) };
            assert_eq!(raw, &pattern[..length]);
        }
    }
    assert_eq!(card.bytes(), MEMORY);
    assert!(card.write(MEMORY - 4, &[0; 5]).unwrap_err().to_string().contains("ends at 0x400000"));
}

#[test]
fn a_responder_behind_the_files_is_told_everything() {
    let files = Files::new("responder");
    let stop = Arc::new(AtomicBool::new(false));
    let responder = {
        let (registers, memory, stop) = (files.map("registers"), files.map("memory"), stop.clone());
        std::thread::spawn(move || {
            // A script: when the doorbell says one, the block of the first ring entry is completed.
            let word = |address: usize| {
                // SAFETY: the word lies in the mapping; the driver wrote it before it rang.
                unsafe { memory.as_ptr().add(address).cast::<u64>().read_volatile() }
            };
            while !stop.load(Ordering::SeqCst) {
                let doorbell = register(&registers, at::WORKER + at::SUBMIT_HEAD).load(Ordering::SeqCst);
                if doorbell == 1 {
                    let ring = register(&registers, at::WORKER + at::SUBMIT_LOW).load(Ordering::SeqCst) as usize;
                    let block = word(ring);
                    let outcome = word(block as usize) ^ u64::MAX;
                    // SAFETY: as above.
                    unsafe { memory.as_mut_ptr().add(block as usize).cast::<u64>().write_volatile(outcome) };
                    register(&registers, at::WORKER + at::COMPLETE_HEAD).store(1, Ordering::SeqCst);
                    return;
                }
                std::thread::yield_now();
            }
        })
    };
    let mut card = files.card();
    card.write_register(at::WORKER + at::SUBMIT_LOW, 0x4000).unwrap();
    card.write(0x4000, &0x8000_u64.to_le_bytes()).unwrap();
    card.write(0x8000, &0x1122_3344_5566_7788_u64.to_le_bytes()).unwrap();
    card.write_register(at::WORKER + at::SUBMIT_HEAD, 1).unwrap();
    let begin = std::time::Instant::now();
    while card.read_register(at::WORKER + at::COMPLETE_HEAD).unwrap() == 0 {
        assert!(begin.elapsed().as_secs() < 20, "the responder does not answer");
        card.wait().unwrap();
    }
    assert_eq!(card.read_word(0x8000).unwrap(), !0x1122_3344_5566_7788);
    stop.store(true, Ordering::SeqCst);
    responder.join().unwrap();
}

#[test]
fn windows_are_read_from_text() {
    let window = Window::parse("/dev/uio0@4096:0x4000").unwrap();
    assert_eq!(window, Window { path: "/dev/uio0".into(), offset: 4096, bytes: 0x4000 });
    assert_eq!(Window::parse("/sys/a:b/c:9").unwrap().path, Path::new("/sys/a:b/c"));
    assert!(Window::parse("/nowhere").unwrap_err().to_string().contains("/nowhere"));
    assert!(Window::parse("/dev/null").unwrap_err().to_string().contains("behind a ':'"));
    assert!(Window::parse("/dev/uio0@x:1").unwrap_err().to_string().contains("no number"));
    let short = Window { path: "/dev/zero".into(), offset: 0, bytes: 4096 };
    assert!(matches!(MappedCard::open(&short, &short), Err(CardError::Register { end: 4096, .. })));
}
