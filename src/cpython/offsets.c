/* Prints where CPython keeps things: one line per name, `-` if this version has no such field. The names and their order
 * are those of `Offsets` in src/cpython.rs, which is checked when that file is compiled.
 *
 * `CULEAK_BLESS=1 cargo test -p culeak-holders --test python offsets` writes the tables of the installed interpreters. By hand:
 *
 *     cc -I$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))') offsets.c -o offsets && ./offsets
 *
 * The headers of a build with the GIL, and -DPy_GIL_DISABLED=1, give the table of the free-threaded one.
 */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <stddef.h>
#include <stdio.h>
#define V PY_VERSION_HEX
#include "internal/pycore_pystate.h"
#if V < 0x03090000
#include "internal/pycore_pymem.h"
#else
#include "internal/pycore_interp.h"
#include "internal/pycore_runtime.h"
#include "internal/pycore_gc.h"
#endif
#if V >= 0x030b0000
#include "internal/pycore_code.h"
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_moduleobject.h"
#endif
#if V >= 0x030e0000
#include "internal/pycore_genobject.h"
#include "internal/pycore_interpframe.h"
#include "internal/pycore_interpframe_structs.h"
#endif
#include "internal/pycore_object.h"

/* Structures that the headers of older versions do not have. */
#if V < 0x030b0000
struct keys {
    Py_ssize_t references, dk_size;
    void *lookup;
    Py_ssize_t usable, dk_nentries;
    char dk_indices[];
};
struct module {
    PyObject_HEAD
    PyObject *md_dict;
    struct PyModuleDef *md_def;
    void *md_state;
    PyObject *md_weaklist, *md_name;
};
#define MODULE struct module
#else
#define keys _dictkeysobject
#define MODULE PyModuleObject
#endif

#define SIZE(name, value) printf(#name " %zu\n", (size_t)(value))
#define AT(name, type, field) SIZE(name, offsetof(type, field))
#define NONE(name) puts(#name " -")

int main(void) {
    SIZE(version, V >> 16);

    /* The runtime. */
    AT(runtime_interpreters, _PyRuntimeState, interpreters.head);
#if V < 0x03090000
    AT(runtime_gc, _PyRuntimeState, gc);
#else
    NONE(runtime_gc);
#endif

    /* An interpreter. */
    AT(interpreter_next, PyInterpreterState, next);
#if V < 0x030b0000
    AT(interpreter_threads, PyInterpreterState, tstate_head);
#else
    AT(interpreter_threads, PyInterpreterState, threads.head);
#endif
#if V < 0x03090000
    NONE(interpreter_gc);
#else
    AT(interpreter_gc, PyInterpreterState, gc);
#endif
#if V < 0x030c0000
    AT(interpreter_modules, PyInterpreterState, modules);
#else
    AT(interpreter_modules, PyInterpreterState, imports.modules);
#endif
    AT(interpreter_sysdict, PyInterpreterState, sysdict);
    AT(interpreter_builtins, PyInterpreterState, builtins);
    AT(interpreter_dict, PyInterpreterState, dict);
#if V < 0x030c0000
    AT(interpreter_importlib, PyInterpreterState, importlib);
#else
    AT(interpreter_importlib, PyInterpreterState, imports.importlib);
#endif
#if V < 0x030d0000
    AT(interpreter_codecs, PyInterpreterState, codec_search_path);
#else
    AT(interpreter_codecs, PyInterpreterState, codecs.search_path);
#endif
    AT(interpreter_fork_hooks, PyInterpreterState, before_forkers);
    AT(interpreter_audit_hooks, PyInterpreterState, audit_hooks);
/* Older versions set it for other interpreters than the main one only. */
#if V < 0x030c0000
    NONE(interpreter_finalizing);
#else
    AT(interpreter_finalizing, PyInterpreterState, finalizing);
#endif
#if V < 0x030a0000
    NONE(interpreter_atexit);
#else
    AT(interpreter_atexit, PyInterpreterState, atexit.callbacks);
#endif
#if V < 0x030c0000
    NONE(interpreter_monitoring);
    NONE(interpreter_monitoring_bytes);
#else
    AT(interpreter_monitoring, PyInterpreterState, monitoring_callables);
    SIZE(interpreter_monitoring_bytes, sizeof(((PyInterpreterState *)0)->monitoring_callables));
#endif
#if V < 0x030c0000
    NONE(interpreter_types);
    NONE(interpreter_types_bytes);
    NONE(interpreter_extension_types);
    NONE(interpreter_extension_types_bytes);
    NONE(static_type_bytes);
    NONE(static_type_dict);
    NONE(static_type_subclasses);
#elif V < 0x030d0000
    AT(interpreter_types, PyInterpreterState, types.builtins);
    SIZE(interpreter_types_bytes, sizeof(((PyInterpreterState *)0)->types.builtins));
    NONE(interpreter_extension_types);
    NONE(interpreter_extension_types_bytes);
    SIZE(static_type_bytes, sizeof(static_builtin_state));
    AT(static_type_dict, static_builtin_state, tp_dict);
    AT(static_type_subclasses, static_builtin_state, tp_subclasses);
#else
    AT(interpreter_types, PyInterpreterState, types.builtins.initialized);
    SIZE(interpreter_types_bytes, sizeof(((PyInterpreterState *)0)->types.builtins.initialized));
    AT(interpreter_extension_types, PyInterpreterState, types.for_extensions.initialized);
    SIZE(interpreter_extension_types_bytes, sizeof(((PyInterpreterState *)0)->types.for_extensions.initialized));
    SIZE(static_type_bytes, sizeof(managed_static_type_state));
    AT(static_type_dict, managed_static_type_state, tp_dict);
    AT(static_type_subclasses, managed_static_type_state, tp_subclasses);
#endif
    SIZE(interpreter_bytes, sizeof(PyInterpreterState));

    /* The collector: its lists of objects. */
#if V >= 0x030e0000 && (V < 0x030e0500 || V < 0x030f0000 && defined(Py_GIL_DISABLED))
    /* The incremental collector: `young`, then `old[2]`. Free-threaded builds keep the fields, and no lists. */
    AT(gc_generations, struct _gc_runtime_state, young);
#else
    AT(gc_generations, struct _gc_runtime_state, generations);
#endif
    SIZE(gc_generation_bytes, sizeof(struct gc_generation));
    AT(gc_permanent, struct _gc_runtime_state, permanent_generation);
    AT(gc_collecting, struct _gc_runtime_state, collecting);

    /* A thread. */
    AT(thread_next, PyThreadState, next);
    AT(thread_id, PyThreadState, thread_id);
#if V < 0x030b0000
    NONE(thread_native_id);
#else
    AT(thread_native_id, PyThreadState, native_thread_id);
#endif
    AT(thread_dict, PyThreadState, dict);
    AT(thread_context, PyThreadState, context);
    AT(thread_exc_info, PyThreadState, exc_info);
#if V < 0x030c0000
    AT(thread_raised, PyThreadState, curexc_value);
#else
    AT(thread_raised, PyThreadState, current_exception);
#endif
    AT(thread_profiler, PyThreadState, c_profileobj);
    AT(thread_tracer, PyThreadState, c_traceobj);
#if V < 0x030b0000
    AT(thread_frame, PyThreadState, frame);
#if V < 0x030a0000
    NONE(thread_c_frame);
    NONE(c_frame_current);
    NONE(c_frame_previous);
#else
    AT(thread_c_frame, PyThreadState, cframe);
    NONE(c_frame_current);
    AT(c_frame_previous, CFrame, previous);
#endif
#elif V < 0x030d0000
    NONE(thread_frame);
    AT(thread_c_frame, PyThreadState, cframe);
    AT(c_frame_current, _PyCFrame, current_frame);
    AT(c_frame_previous, _PyCFrame, previous);
#else
    AT(thread_frame, PyThreadState, current_frame);
    NONE(thread_c_frame);
    NONE(c_frame_current);
    NONE(c_frame_previous);
#endif
    SIZE(thread_bytes, sizeof(PyThreadState));
    AT(exc_value, _PyErr_StackItem, exc_value);
    AT(exc_previous, _PyErr_StackItem, previous_item);

    /* A frame object, and an interpreter's frame. */
    AT(frame_object_back, PyFrameObject, f_back);
    AT(frame_object_trace, PyFrameObject, f_trace);
#if V < 0x030b0000
    AT(frame_object_code, PyFrameObject, f_code);
    AT(frame_object_builtins, PyFrameObject, f_builtins);
    AT(frame_object_globals, PyFrameObject, f_globals);
    AT(frame_object_names, PyFrameObject, f_locals);
    AT(frame_object_value_stack, PyFrameObject, f_valuestack);
#if V < 0x030a0000
    AT(frame_object_stack_top, PyFrameObject, f_stacktop);
    NONE(frame_object_stack_depth);
#else
    NONE(frame_object_stack_top);
    AT(frame_object_stack_depth, PyFrameObject, f_stackdepth);
#endif
    AT(frame_object_instruction, PyFrameObject, f_lasti);
    AT(frame_object_locals, PyFrameObject, f_localsplus);
    NONE(frame_object_frame);
    NONE(frame_object_data);
    NONE(frame_object_extra_locals);
    NONE(frame_object_locals_cache);
    NONE(frame_object_overwritten);
    SIZE(frame_object_bytes, sizeof(PyFrameObject));
    NONE(frame_code);
    NONE(frame_previous);
    NONE(frame_function);
    NONE(frame_names);
    NONE(frame_object);
    NONE(frame_instruction);
    NONE(frame_stack_top);
    NONE(frame_stack_pointer);
    NONE(frame_copy);
    NONE(frame_owner);
    NONE(frame_is_entry);
    NONE(frame_locals);
#else
    NONE(frame_object_code);
    NONE(frame_object_builtins);
    NONE(frame_object_globals);
    NONE(frame_object_names);
    NONE(frame_object_value_stack);
    NONE(frame_object_stack_top);
    NONE(frame_object_stack_depth);
    NONE(frame_object_instruction);
    NONE(frame_object_locals);
    AT(frame_object_frame, PyFrameObject, f_frame);
    AT(frame_object_data, PyFrameObject, _f_frame_data);
#if V < 0x030d0000
    NONE(frame_object_extra_locals);
    NONE(frame_object_locals_cache);
#else
    AT(frame_object_extra_locals, PyFrameObject, f_extra_locals);
    AT(frame_object_locals_cache, PyFrameObject, f_locals_cache);
#endif
#if V < 0x030e0000
    NONE(frame_object_overwritten);
#else
    AT(frame_object_overwritten, PyFrameObject, f_overwritten_fast_locals);
#endif
    /* `tp_basicsize`: the frame is a part of the object. */
    SIZE(frame_object_bytes, offsetof(PyFrameObject, _f_frame_data) + offsetof(_PyInterpreterFrame, localsplus));
#if V < 0x030d0000
    AT(frame_code, _PyInterpreterFrame, f_code);
#else
    AT(frame_code, _PyInterpreterFrame, f_executable);
#endif
    AT(frame_previous, _PyInterpreterFrame, previous);
#if V < 0x030c0000
    AT(frame_function, _PyInterpreterFrame, f_func);
#else
    AT(frame_function, _PyInterpreterFrame, f_funcobj);
#endif
    AT(frame_names, _PyInterpreterFrame, f_locals);
    AT(frame_object, _PyInterpreterFrame, frame_obj);
#if V < 0x030d0000
    AT(frame_instruction, _PyInterpreterFrame, prev_instr);
#else
    AT(frame_instruction, _PyInterpreterFrame, instr_ptr);
#endif
#if V < 0x030e0000
    AT(frame_stack_top, _PyInterpreterFrame, stacktop);
    NONE(frame_stack_pointer);
#else
    NONE(frame_stack_top);
    AT(frame_stack_pointer, _PyInterpreterFrame, stackpointer);
#endif
#if V >= 0x030e0000 && defined(Py_GIL_DISABLED)
    AT(frame_copy, _PyInterpreterFrame, tlbc_index);
#else
    NONE(frame_copy);
#endif
    AT(frame_owner, _PyInterpreterFrame, owner);
#if V < 0x030c0000
    AT(frame_is_entry, _PyInterpreterFrame, is_entry);
#else
    NONE(frame_is_entry);
#endif
    AT(frame_locals, _PyInterpreterFrame, localsplus);
#endif

    /* A generator. */
#if V < 0x030b0000
    AT(generator_frame_object, PyGenObject, gi_frame);
    AT(generator_code, PyGenObject, gi_code);
    AT(generator_exception, PyGenObject, gi_exc_state);
    AT(generator_origin, PyCoroObject, cr_origin);
    NONE(generator_frame);
    NONE(generator_state);
#else
    NONE(generator_frame_object);
#if V < 0x030c0000
    AT(generator_code, PyGenObject, gi_code);
#else
    NONE(generator_code);
#endif
    AT(generator_exception, PyGenObject, gi_exc_state);
    AT(generator_origin, PyGenObject, gi_origin_or_finalizer);
    AT(generator_frame, PyGenObject, gi_iframe);
    AT(generator_state, PyGenObject, gi_frame_state);
#endif

    /* Code. */
    AT(code_stack_slots, PyCodeObject, co_stacksize);
    AT(code_first_line, PyCodeObject, co_firstlineno);
    AT(code_constants, PyCodeObject, co_consts);
    AT(code_file, PyCodeObject, co_filename);
    AT(code_name, PyCodeObject, co_name);
#if V < 0x030b0000
    NONE(code_qualified_name);
#else
    AT(code_qualified_name, PyCodeObject, co_qualname);
#endif
    AT(code_extra, PyCodeObject, co_extra);
#if V < 0x030a0000
    AT(code_lines, PyCodeObject, co_lnotab);
#else
    AT(code_lines, PyCodeObject, co_linetable);
#endif
#if V < 0x030b0000
    AT(code_variables, PyCodeObject, co_nlocals);
    AT(code_variable_names, PyCodeObject, co_varnames);
    AT(code_cell_names, PyCodeObject, co_cellvars);
    AT(code_free_names, PyCodeObject, co_freevars);
    AT(code_instructions, PyCodeObject, co_code);
    SIZE(code_bytes, sizeof(PyCodeObject));
    NONE(code_first_traceable);
#else
    AT(code_variables, PyCodeObject, co_nlocalsplus);
    AT(code_variable_names, PyCodeObject, co_localsplusnames);
    NONE(code_cell_names);
    NONE(code_free_names);
    AT(code_instructions, PyCodeObject, co_code_adaptive);
    /* `tp_basicsize`: the instructions follow. */
    SIZE(code_bytes, offsetof(PyCodeObject, co_code_adaptive));
    AT(code_first_traceable, PyCodeObject, _co_firsttraceable);
#endif
#if V < 0x030c0000
    NONE(code_version);
#else
    AT(code_version, PyCodeObject, co_version);
#endif
#if V >= 0x030e0000 && defined(Py_GIL_DISABLED)
    AT(code_copies, PyCodeObject, co_tlbc);
#else
    NONE(code_copies);
#endif

    /* Containers. */
    AT(list_items, PyListObject, ob_item);
    AT(tuple_items, PyTupleObject, ob_item);
    AT(dict_keys, PyDictObject, ma_keys);
    AT(dict_values, PyDictObject, ma_values);
    SIZE(dict_bytes, sizeof(PyDictObject));
    AT(keys_entries, struct keys, dk_nentries);
    AT(keys_indices, struct keys, dk_indices);
#if V < 0x030d0000
    SIZE(values_first, 0);
    NONE(values_embedded);
    NONE(values_valid);
#else
    AT(values_first, PyDictValues, values);
    AT(values_embedded, PyDictValues, embedded);
    AT(values_valid, PyDictValues, valid);
#endif
    AT(set_mask, PySetObject, mask);
    AT(set_table, PySetObject, table);
    SIZE(set_bytes, sizeof(PySetObject));

    /* Functions, methods, cells, modules. */
    AT(cell_contents, PyCellObject, ob_ref);
    AT(function_code, PyFunctionObject, func_code);
    AT(function_globals, PyFunctionObject, func_globals);
#if V < 0x030a0000
    NONE(function_builtins);
#else
    AT(function_builtins, PyFunctionObject, func_builtins);
#endif
    AT(function_defaults, PyFunctionObject, func_defaults);
    AT(function_keyword_defaults, PyFunctionObject, func_kwdefaults);
    AT(function_closure, PyFunctionObject, func_closure);
    AT(function_doc, PyFunctionObject, func_doc);
    AT(function_name, PyFunctionObject, func_name);
    AT(function_dict, PyFunctionObject, func_dict);
    AT(function_module, PyFunctionObject, func_module);
    AT(function_annotations, PyFunctionObject, func_annotations);
#if V < 0x030e0000
    NONE(function_annotate);
#else
    AT(function_annotate, PyFunctionObject, func_annotate);
#endif
#if V < 0x030c0000
    NONE(function_type_parameters);
#else
    AT(function_type_parameters, PyFunctionObject, func_typeparams);
#endif
    AT(method_function, PyMethodObject, im_func);
    AT(method_self, PyMethodObject, im_self);
    AT(builtin_self, PyCFunctionObject, m_self);
    AT(builtin_module, PyCFunctionObject, m_module);
#if V < 0x03090000
    NONE(builtin_class);
#else
    AT(builtin_class, PyCMethodObject, mm_class);
#endif
    SIZE(builtin_bytes, sizeof(PyCFunctionObject));
    AT(module_dict, MODULE, md_dict);
    AT(module_state, MODULE, md_state);
#if V < 0x030f0000
    AT(module_definition, MODULE, md_def);
    NONE(module_state_bytes);
#else
    NONE(module_definition);
    AT(module_state_bytes, MODULE, md_state_size);
#endif
    AT(definition_state_bytes, PyModuleDef, m_size);
    SIZE(module_bytes, sizeof(MODULE));

    /* Exceptions, tracebacks, weak references, views of memory. */
    AT(exception_args, PyBaseExceptionObject, args);
#if V < 0x030b0000
    NONE(exception_notes);
#else
    AT(exception_notes, PyBaseExceptionObject, notes);
#endif
    AT(exception_traceback, PyBaseExceptionObject, traceback);
    AT(exception_context, PyBaseExceptionObject, context);
    AT(exception_cause, PyBaseExceptionObject, cause);
    SIZE(exception_bytes, sizeof(PyBaseExceptionObject));
    AT(traceback_next, PyTracebackObject, tb_next);
    AT(traceback_frame, PyTracebackObject, tb_frame);
    AT(weakref_callback, PyWeakReference, wr_callback);
    SIZE(weakref_bytes, sizeof(PyWeakReference));
    AT(memoryview_buffer, PyMemoryViewObject, mbuf);
    SIZE(memoryview_bytes, sizeof(PyMemoryViewObject));

    /* Types. */
    AT(type_name, PyTypeObject, tp_name);
    AT(type_basic_bytes, PyTypeObject, tp_basicsize);
    AT(type_item_bytes, PyTypeObject, tp_itemsize);
    AT(type_flags, PyTypeObject, tp_flags);
    AT(type_weak_list, PyTypeObject, tp_weaklistoffset);
    AT(type_members, PyTypeObject, tp_members);
    AT(type_base, PyTypeObject, tp_base);
    AT(type_dict, PyTypeObject, tp_dict);
    AT(type_dict_offset, PyTypeObject, tp_dictoffset);
    AT(type_bases, PyTypeObject, tp_bases);
    AT(type_mro, PyTypeObject, tp_mro);
    AT(type_cache, PyTypeObject, tp_cache);
    AT(type_subclasses, PyTypeObject, tp_subclasses);
    AT(type_qualified_name, PyHeapTypeObject, ht_qualname);
    AT(type_slots, PyHeapTypeObject, ht_slots);
    AT(type_cached_keys, PyHeapTypeObject, ht_cached_keys);
#if V < 0x03090000
    NONE(type_module);
#else
    AT(type_module, PyHeapTypeObject, ht_module);
#endif
    SIZE(type_bytes, sizeof(PyHeapTypeObject));
    SIZE(type_static_bytes, sizeof(PyTypeObject));

    /* Texts. */
    AT(text_length, PyASCIIObject, length);
    AT(text_state, PyASCIIObject, state);
    PyASCIIObject text = {.state.kind = 1};
    SIZE(text_kind_bit, __builtin_ctz(*(unsigned *)&text.state));
    SIZE(text_ascii, sizeof(PyASCIIObject));
    SIZE(text_compact, sizeof(PyCompactUnicodeObject));

    /* Where the interpreter's own description of its structures has these offsets. */
#if V < 0x030d0000
#define DESCRIBED(name, field) NONE(name)
#else
#define DESCRIBED(name, field) AT(name, _Py_DebugOffsets, field)
#endif
    DESCRIBED(described_runtime_interpreters, runtime_state.interpreters_head);
    DESCRIBED(described_interpreter_bytes, interpreter_state.size);
    DESCRIBED(described_interpreter_next, interpreter_state.next);
    DESCRIBED(described_interpreter_threads, interpreter_state.threads_head);
    DESCRIBED(described_interpreter_gc, interpreter_state.gc);
    DESCRIBED(described_interpreter_modules, interpreter_state.imports_modules);
    DESCRIBED(described_interpreter_sysdict, interpreter_state.sysdict);
    DESCRIBED(described_interpreter_builtins, interpreter_state.builtins);
    DESCRIBED(described_thread_bytes, thread_state.size);
    DESCRIBED(described_thread_next, thread_state.next);
    DESCRIBED(described_thread_frame, thread_state.current_frame);
    DESCRIBED(described_thread_id, thread_state.thread_id);
    DESCRIBED(described_thread_native_id, thread_state.native_thread_id);
    DESCRIBED(described_frame_previous, interpreter_frame.previous);
    DESCRIBED(described_frame_code, interpreter_frame.executable);
    DESCRIBED(described_frame_instruction, interpreter_frame.instr_ptr);
    DESCRIBED(described_frame_locals, interpreter_frame.localsplus);
    DESCRIBED(described_frame_owner, interpreter_frame.owner);
    DESCRIBED(described_code_bytes, code_object.size);
    DESCRIBED(described_code_file, code_object.filename);
    DESCRIBED(described_code_name, code_object.name);
    DESCRIBED(described_code_lines, code_object.linetable);
    DESCRIBED(described_code_first_line, code_object.firstlineno);
    DESCRIBED(described_code_variable_names, code_object.localsplusnames);
    DESCRIBED(described_code_instructions, code_object.co_code_adaptive);
    DESCRIBED(described_type_name, type_object.tp_name);
    DESCRIBED(described_type_flags, type_object.tp_flags);
    DESCRIBED(described_tuple_items, tuple_object.ob_item);
    DESCRIBED(described_list_items, list_object.ob_item);
    DESCRIBED(described_dict_keys, dict_object.ma_keys);
    DESCRIBED(described_dict_values, dict_object.ma_values);
    DESCRIBED(described_text_length, unicode_object.length);
    DESCRIBED(described_text_state, unicode_object.state);
    DESCRIBED(described_text_ascii, unicode_object.asciiobject_size);
    DESCRIBED(described_gc_collecting, gc.collecting);
    return 0;
}
