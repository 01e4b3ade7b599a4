// Package report writes the results of a performance test as hccl_test's table and
// as the JSON of nccl-tests.
package report
