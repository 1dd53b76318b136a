//! GEMMs by NVIDIA's libcublasLt where one is installed: nothing here is needed, and whatever goes
//! wrong leaves the GEMM to our own kernels. Loaded at run time, with the thirteen functions that
//! are called.

use super::super::OutOfMemory;
use super::driver::Driver;
use super::memory::Buf;
use libloading::Library;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::rc::Rc;

/// Scratch of a GEMM.
const WORKSPACE_BYTES: usize = 32 << 20;

// Numbers of `cublasLt.h`.
const CUDA_R_32F: c_int = 0;
const CUDA_R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const DESC_TRANSA: c_int = 3;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS_POINTER: c_int = 8;
const OP_TRANSPOSED: c_int = 1;
const EPILOGUE_BIAS: c_int = 4;
const PREFERENCE_WORKSPACE_BYTES: c_int = 1;

/// `cublasLtMatmulHeuristicResult_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct Heuristic {
    algo: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type CreateDesc = unsafe extern "C" fn(*mut Handle, c_int, c_int) -> c_int;
type CreateLayout = unsafe extern "C" fn(*mut Handle, c_int, u64, u64, i64) -> c_int;
type SetAttribute = unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int;
type Search = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut Heuristic,
    *mut c_int,
) -> c_int;
type Matmul = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *mut c_void,
    Handle,
    *const [u64; 8],
    *mut c_void,
    usize,
    *mut c_void,
) -> c_int;

struct Functions {
    version: unsafe extern "C" fn() -> usize,
    create: Create,
    destroy: Destroy,
    create_desc: CreateDesc,
    set_desc: SetAttribute,
    destroy_desc: Destroy,
    create_layout: CreateLayout,
    destroy_layout: Destroy,
    create_preference: Create,
    set_preference: SetAttribute,
    destroy_preference: Destroy,
    search: Search,
    matmul: Matmul,
}

impl Functions {
    fn of(library: &Library) -> Result<Self, libloading::Error> {
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: the types above are the ones of `cublasLt.h`, the same in the releases of
                // `NAMES`.
                unsafe { *library.get($name)? }
            };
        }
        Ok(Self {
            version: find!(b"cublasLtGetVersion"),
            create: find!(b"cublasLtCreate"),
            destroy: find!(b"cublasLtDestroy"),
            create_desc: find!(b"cublasLtMatmulDescCreate"),
            set_desc: find!(b"cublasLtMatmulDescSetAttribute"),
            destroy_desc: find!(b"cublasLtMatmulDescDestroy"),
            create_layout: find!(b"cublasLtMatrixLayoutCreate"),
            destroy_layout: find!(b"cublasLtMatrixLayoutDestroy"),
            create_preference: find!(b"cublasLtMatmulPreferenceCreate"),
            set_preference: find!(b"cublasLtMatmulPreferenceSetAttribute"),
            destroy_preference: find!(b"cublasLtMatmulPreferenceDestroy"),
            search: find!(b"cublasLtMatmulAlgoGetHeuristic"),
            matmul: find!(b"cublasLtMatmul"),
        })
    }
}

/// A handle, destroyed when dropped.
struct Owned(Handle, Destroy);

impl Owned {
    fn new(made: impl FnOnce(*mut Handle) -> c_int, destroy: Destroy) -> Result<Self, c_int> {
        let mut handle = null_mut();
        match made(&mut handle) {
            0 => Ok(Self(handle, destroy)),
            status => Err(status),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the library made this handle, and is never unloaded.
        let _ = unsafe { (self.1)(self.0) };
    }
}

/// A prepared GEMM: all GEMMs of its size use it.
struct Plan {
    desc: Owned,
    weight: Owned,
    x: Owned,
    out: Owned,
    algo: [u64; 8],
}

/// N, K and M of a GEMM, the stride of its output, and whether there is a bias.
type Size = (usize, usize, usize, usize, bool);

/// `out[m, n] = x[m, k] weight[n, k]^T + bias[n]` by device addresses; `bias` is 0 if there is
/// none.
#[derive(Clone, Copy)]
pub(super) struct Gemm {
    pub out: u64,
    pub x: u64,
    pub weight: u64,
    pub bias: u64,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Values from one row of the output to the next.
    pub ld: usize,
}

/// A library that was loaded.
struct Found {
    functions: Functions,
    path: PathBuf,
}

impl Found {
    /// `libcublasLt 13.0.2 (/usr/lib/...)`
    fn describe(&self) -> String {
        // SAFETY: takes nothing and returns a number.
        let v = unsafe { (self.functions.version)() };
        format!("libcublasLt {}.{}.{} ({})", v / 10_000, v % 10_000 / 100, v % 100, self.path.display())
    }
}

fn load(path: &PathBuf) -> Result<Found, String> {
    // SAFETY: NVIDIA's library, whose start does no more than register itself.
    let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
    // Never unloaded: it registers exit handlers, and unloading it while the process ends runs them
    // twice at once.
    let library = ManuallyDrop::new(library);
    let functions = Functions::of(&library).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Found { functions, path: path.clone() })
}

/// Describes the first of `paths` that can be loaded. Needs no GPU.
pub fn cublaslt(paths: &[PathBuf]) -> Result<String, String> {
    first(paths.iter().map(|path| load(path).map(|found| found.describe())))
}

/// Returns the first candidate that works, or the error of the first one tried.
fn first<T>(all: impl Iterator<Item = Result<T, String>>) -> Result<T, String> {
    let mut why = None;
    for one in all {
        match one {
            Ok(one) => return Ok(one),
            Err(e) => why = why.or(Some(e)),
        }
    }
    Err(why.unwrap_or_else(|| "no library".to_owned()))
}

/// The library, started on a GPU. Fields drop in order.
pub(super) struct CublasLt {
    plans: RefCell<HashMap<Size, Option<Plan>>>,
    handle: Owned,
    workspace: Buf<u8>,
    /// Cleared by the first GEMM that fails when it is launched.
    works: Cell<bool>,
    found: Found,
}

impl CublasLt {
    /// Starts the first of `paths` that works. A context is current.
    pub fn open(driver: &Rc<Driver>, paths: &[PathBuf]) -> Result<Self, String> {
        first(paths.iter().map(|path| Self::of(driver, load(path)?)))
    }

    fn of(driver: &Rc<Driver>, found: Found) -> Result<Self, String> {
        // SAFETY: a context is current; the pointer is to a live handle.
        let handle = Owned::new(|to| unsafe { (found.functions.create)(to) }, found.functions.destroy)
            .map_err(|status| format!("{} does not start (status {status})", found.path.display()))?;
        let workspace = Buf::new(driver, WORKSPACE_BYTES).map_err(|e: OutOfMemory| e.to_string())?;
        Ok(Self { plans: RefCell::default(), handle, workspace, works: Cell::new(true), found })
    }

    pub fn describe(&self) -> String {
        self.found.describe()
    }

    /// Runs a GEMM of bf16 inputs with an f32 output; false if it was not done.
    pub fn multiply(&self, driver: &Driver, p: &Gemm) -> bool {
        if !self.works.get() {
            return false;
        }
        let mut plans = self.plans.borrow_mut();
        let plan = plans.entry((p.n, p.k, p.m, p.ld, p.bias != 0)).or_insert_with(|| self.plan(p).ok());
        let Some(plan) = plan else { return false };
        let (one, zero, f) = (1f32, 0f32, &self.found.functions);
        let pointer = |at: u64| std::ptr::with_exposed_provenance_mut::<c_void>(at as usize);
        // SAFETY: handles and plan are live and were made for this size. Addresses belong to the
        // caller's buffers, which are large enough and are freed only after a wait. The scalars
        // outlive the call, which reads them.
        let status = unsafe {
            if p.bias != 0 && set(f.set_desc, plan.desc.0, DESC_BIAS_POINTER, &p.bias) != 0 {
                return false;
            }
            (f.matmul)(
                self.handle.0,
                plan.desc.0,
                std::ptr::from_ref(&one).cast(),
                pointer(p.weight),
                plan.weight.0,
                pointer(p.x),
                plan.x.0,
                std::ptr::from_ref(&zero).cast(),
                pointer(p.out),
                plan.out.0,
                pointer(p.out),
                plan.out.0,
                &plan.algo,
                pointer(self.workspace.ptr()),
                WORKSPACE_BYTES,
                driver.stream().cu_stream().cast(),
            )
        };
        self.works.set(status == 0);
        status == 0
    }

    /// Row-major matrices are the transposed column-major ones: out^T [n, m] = weight^T^T x^T.
    fn plan(&self, p: &Gemm) -> Result<Plan, c_int> {
        let f = &self.found.functions;
        let ok = |status: c_int| if status == 0 { Ok(()) } else { Err(status) };
        let [m, n, k, ld] = [p.m, p.n, p.k, p.ld].map(|n| n as u64);
        // SAFETY: every pointer is to a live handle or number of the type and size that its
        // attribute has.
        unsafe {
            let desc = Owned::new(|to| (f.create_desc)(to, COMPUTE_32F, CUDA_R_32F), f.destroy_desc)?;
            ok(set(f.set_desc, desc.0, DESC_TRANSA, &OP_TRANSPOSED))?;
            if p.bias != 0 {
                ok(set(f.set_desc, desc.0, DESC_EPILOGUE, &EPILOGUE_BIAS))?;
                ok(set(f.set_desc, desc.0, DESC_BIAS_POINTER, &p.bias))?;
            }
            let layout = |dtype, rows: u64, cols: u64, ld: u64| {
                Owned::new(|to| (f.create_layout)(to, dtype, rows, cols, ld as i64), f.destroy_layout)
            };
            let weight = layout(CUDA_R_16BF, k, n, k)?;
            let x = layout(CUDA_R_16BF, k, m, k)?;
            let out = layout(CUDA_R_32F, n, m, ld)?;
            let preference = Owned::new(|to| (f.create_preference)(to), f.destroy_preference)?;
            ok(set(f.set_preference, preference.0, PREFERENCE_WORKSPACE_BYTES, &(WORKSPACE_BYTES as u64)))?;
            let mut found = Heuristic { algo: [0; 8], workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
            let mut count = 0;
            ok((f.search)(
                self.handle.0,
                desc.0,
                weight.0,
                x.0,
                out.0,
                out.0,
                preference.0,
                1,
                &mut found,
                &mut count,
            ))?;
            ok(if count == 1 { found.state } else { -1 })?;
            Ok(Plan { desc, weight, x, out, algo: found.algo })
        }
    }
}

/// Sets an attribute.
///
/// # Safety
/// `handle` is live and its attribute has the type of `value`.
unsafe fn set<T>(setter: SetAttribute, handle: Handle, attribute: c_int, value: &T) -> c_int {
    // SAFETY: the caller's word; the value outlives the call, which copies it.
    unsafe { setter(handle, attribute, std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
