// Package msccl reads plans of collectives in MSCCL's XML and MSCCL++'s JSON, and writes Programs as MSCCL's XML. It is pure: bytes in,
// values out. What is read is proven by plan.Complete before anybody sees it.
//
// Read file.go for what the format says, import.go for what becomes of it.
//
// MSCCL's XML is defined by its readers: msccl/language/ir.py of microsoft/msccl-tools,
// msccl_parser.cc of Azure/msccl-executor-nccl and msccl_kernel_impl.h of ROCm/rccl.
// MSCCL++'s JSON is that of docs/dsl and execution_plan.cc of microsoft/mscclpp; see
// plusplus.go for what of it maps.
package msccl
